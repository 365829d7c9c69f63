//! Real folders: owners, formats, what is refused and how.

use redb::TableDefinition;
use tempfile::TempDir;

use super::*;

fn dir() -> (TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().join("data")).unwrap();
    (dir, path)
}

fn refusal(path: &Utf8Path) -> String {
    let text = EmbeddedStore::open(path)
        .map(|_| ())
        .expect_err("refused")
        .to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[tokio::test]
async fn s7_what_was_committed_is_there_after_a_restart() {
    let (_dir, path) = dir();
    let (mut store, recovered) = EmbeddedStore::open(&path).unwrap();
    assert_eq!(Model::from(recovered), Model::default());
    assert!(store.is_durable());
    let (one, set) = (
        KeySet::new(["a"]).unwrap(),
        KeySet::new(["b", "c"]).unwrap(),
    );
    let token = |n| Token::new(n).unwrap();
    let mut batch = Batch::new();
    batch.mark(1 << 62);
    batch.grant(token(5), 250, one.as_keys());
    batch.grant(token(6), 1, set.as_keys());
    let mut batch = store.commit(batch).await.unwrap();
    batch.end(token(5));
    batch.grant(token(7), 3, one.as_keys());
    store.commit(batch).await.unwrap();
    drop(store);

    let (_store, recovered) = EmbeddedStore::open(&path).unwrap();
    let grants = [(token(6), (1, set)), (token(7), (3, one))].into();
    assert_eq!(
        Model::from(recovered),
        Model {
            mark: 1 << 62,
            grants
        }
    );
}

#[test]
fn s8_a_data_directory_has_one_owner() {
    let (_dir, path) = dir();
    let (store, _) = EmbeddedStore::open(&path).unwrap();
    let text = refusal(&path);
    let process = format!("process {}", std::process::id());
    for part in [path.as_str(), "in use", &process, "data_dir"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    drop(store);
    EmbeddedStore::open(&path).unwrap();
}

#[test]
fn s8_a_foreign_file_is_refused_and_left_alone() {
    for content in [&b"CREATE TABLE t;"[..], &[0; 4096], &[7; 100_000], b""] {
        let (_dir, path) = dir();
        std::fs::create_dir(&path).unwrap();
        let file = path.join(DATABASE_FILE);
        std::fs::write(&file, content).unwrap();
        let text = refusal(&path);
        for part in [file.as_str(), "not a Ticketing database", "data_dir"] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), content);
    }
}

#[test]
fn s8_another_programs_database_is_refused_and_left_alone() {
    let (_dir, path) = dir();
    std::fs::create_dir(&path).unwrap();
    let database = redb::Database::create(path.join(DATABASE_FILE)).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(TableDefinition::<&str, &str>::new("theirs"))
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let file = path.join(DATABASE_FILE);
    let before = std::fs::read(&file).unwrap();
    assert!(refusal(&path).contains("not a Ticketing database"));
    assert!(std::fs::read(&file).unwrap() == before, "it was changed");
}

#[test]
fn s8_a_newer_format_is_refused() {
    let (_dir, path) = dir();
    drop(EmbeddedStore::open(&path).unwrap());
    let database = redb::Database::open(path.join(DATABASE_FILE)).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(TableDefinition::<&str, u64>::new("meta"))
        .unwrap()
        .insert("format", 2)
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let before = std::fs::read(path.join(DATABASE_FILE)).unwrap();
    let text = refusal(&path);
    let after = std::fs::read(path.join(DATABASE_FILE)).unwrap();
    assert!(after == before, "it was changed");
    for part in [
        "grants.redb",
        "format 2",
        "reads format 1",
        "run the version",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn s8_a_damaged_file_is_refused() {
    let (_dir, path) = dir();
    drop(EmbeddedStore::open(&path).unwrap());
    let file = path.join(DATABASE_FILE);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let text = refusal(&path);
    for part in [file.as_str(), "damaged", "backup"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    // Nothing was made in its place.
    assert!(refusal(&path).contains("damaged"));
}

/// A start that was cut short while it made the database is no obstacle.
#[test]
fn s8_an_unfinished_new_database_is_made_anew() {
    let (_dir, path) = dir();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join(NEW_DATABASE_FILE), b"half").unwrap();
    drop(EmbeddedStore::open(&path).unwrap());
    drop(EmbeddedStore::open(&path).unwrap());
    assert!(!path.join(NEW_DATABASE_FILE).exists());
}

#[test]
fn folders_on_the_way_are_made() {
    let (_dir, path) = dir();
    let path = path.join("a/b");
    drop(EmbeddedStore::open(&path).unwrap());
    assert!(path.join(DATABASE_FILE).exists());
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let (_dir, path) = dir();
    std::fs::write(&path, b"a file").unwrap();
    assert!(refusal(&path).contains(path.as_str()));
}
