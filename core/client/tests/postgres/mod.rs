//! A PostgreSQL server for the tests of one program: in a temporary folder, on a free loopback
//! port, ended with the program's last test.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

pub(crate) struct Server {
    process: Child,
    port: u16,
    _dir: TempDir,
}

/// The server while a test uses it; each test holds it up.
static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    pub(crate) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().expect("no test failed while starting it");
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let user = User::of_the_server();
        user.own(dir.path());
        user.own(&data);
        let made = user
            .command("initdb")
            .args([
                "--auth=trust",
                "--username=postgres",
                "--no-sync",
                "--encoding=UTF8",
            ])
            .args(["--locale=C", "-D"])
            .arg(&data)
            .current_dir(&data)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        for _ in 0..5 {
            // Free a moment ago: the server can't be asked for any free port.
            let port = free_port();
            let log = File::create(dir.path().join("log")).unwrap();
            let mut process = user
                .command("postgres")
                .args(["-h", "127.0.0.1", "-k", "", "-F", "-p"])
                .arg(port.to_string())
                .arg("-D")
                .arg(&data)
                .current_dir(&data)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            while process.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Server {
                        process,
                        port,
                        _dir: dir,
                    };
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        panic!("PostgreSQL does not start: {log}");
    }

    pub(crate) async fn connect(&self, database: &str) -> Client {
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(self.port)
            .user("postgres")
            .dbname(database);
        let started = Instant::now();
        loop {
            match config.connect(NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(async move {
                        let _ = connection.await;
                    });
                    return client;
                }
                // It is starting still.
                Err(e) if started.elapsed() > Duration::from_secs(60) => panic!("{e:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Drop for Server {
    fn drop(&mut self) {
        // A fast shutdown: it need not wait for connections.
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::INT).unwrap();
        self.process.wait().unwrap();
    }
}

/// Whom the server runs as: PostgreSQL refuses root.
struct User(Option<(u32, u32)>);

impl User {
    fn of_the_server() -> Self {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return User(None);
        }
        let id = |flag| {
            let out = Command::new("id")
                .args([flag, "postgres"])
                .output()
                .unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            text.trim()
                .parse()
                .expect("a user `postgres`, as its package makes it")
        };
        User(Some((id("-u"), id("-g"))))
    }

    fn own(&self, path: &Path) {
        if let Some((uid, gid)) = self.0 {
            chown(path, Some(uid), Some(gid)).unwrap();
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program));
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
        command
    }
}

/// In the path, or where Debian puts it.
fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let debian = debian.flatten().map(|version| version.path().join("bin"));
    std::env::split_paths(&path)
        .chain(debian)
        .map(|folder| folder.join(program))
        .find(|file| file.exists())
        .unwrap_or_else(|| {
            panic!("PostgreSQL's `{program}` is missing: install it (Debian: apt-get install postgresql)")
        })
}
