//! A broker on a store that fails.

use super::*;
use crate::engine::tests::FakeStore;
use crate::store::{Batch, BoxFuture, StoredGrant};
use ticketing_wire::{HELLO_LEN, KeySet, Reply, Request, RequestId, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn acquire(n: u64, wait: u8) -> Vec<u8> {
    let id = RequestId::new(n).unwrap();
    let keys = KeySet::new(["k"]).unwrap();
    let mut frame = Vec::new();
    Request::Acquire {
        id,
        wait,
        lease: 30,
        keys: keys.as_keys(),
    }
    .encode(&mut frame);
    frame
}

async fn broker(store: impl Store + 'static) -> (Broker, TcpStream) {
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Config::default()
    };
    let access = Access::load(&config).unwrap();
    let broker = Broker::serve(&config, access, Box::new(store), &Recovered::default())
        .await
        .unwrap();
    let mut stream = TcpStream::connect(broker.local_addr()).await.unwrap();
    stream.read_exact(&mut [0; HELLO_LEN]).await.unwrap();
    stream.write_all(&[0; 32]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 1);
    (broker, stream)
}

async fn committing(store: &FakeStore) {
    while store.commits().is_empty() {
        tokio::task::yield_now().await;
    }
}

async fn replies(mut stream: TcpStream) -> Vec<Reply> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let mut rest = &bytes[..];
    let mut replies = Vec::new();
    while let Some((reply, used)) = Reply::decode(rest).unwrap() {
        replies.push(reply);
        rest = &rest[used..];
    }
    replies
}

#[tokio::test]
async fn s7_a_failed_store_ends_the_broker_after_its_answers() {
    let store = FakeStore::failing();
    let (broker, mut stream) = broker(store.clone()).await;
    stream
        .write_all(&[acquire(1, 0), acquire(2, 30)].concat())
        .await
        .unwrap();
    committing(&store).await;
    store.gate.add_permits(1);
    let (ended, replies) = tokio::join!(broker.wait(), replies(stream));
    assert!(matches!(ended, Err(BrokerError::Store(_))), "{ended:?}");
    let [first, second] = [1, 2].map(|n| RequestId::new(n).unwrap());
    let code = ticketing_wire::ErrorCode::NotActive;
    assert_eq!(
        replies,
        [
            Reply::Indeterminate { id: first },
            Reply::Error { id: second, code }
        ]
    );
    assert!(TcpStream::connect(broker.local_addr()).await.is_err());
    assert!(broker.shutdown().await.is_err(), "too late for a clean end");
    assert_eq!(store.commits().len(), 1);
}

#[tokio::test]
async fn s10_a_store_that_never_answers_ends_the_stop_in_time() {
    let store = FakeStore::new();
    let (broker, mut stream) = broker(store.clone()).await;
    stream.write_all(&acquire(1, 0)).await.unwrap();
    committing(&store).await;
    // From here on time is skipped wherever everybody waits.
    tokio::time::pause();
    let begun = Instant::now();
    let ended = broker.shutdown().await;
    assert!(matches!(ended, Err(BrokerError::StopTimeout)), "{ended:?}");
    assert!(begun.elapsed() <= Duration::from_secs(5));
    // Nobody can say what became of the request: no answer.
    assert_eq!(replies(stream).await, []);
}

#[test]
fn s7_stored_grants_are_held_for_their_full_lease_from_the_start() {
    for lease in [1, 30, 250] {
        let recovered = Recovered {
            mark: 1 << 21,
            grants: vec![StoredGrant {
                token: Token::new(1 << 20).unwrap(),
                lease,
                keys: KeySet::new(["a", "b"]).unwrap(),
            }],
        };
        let table = open_table(&Config::default(), &recovered).unwrap();
        assert_eq!(table.stats().keys, 2);
        let lease = Duration::from_secs(lease.into());
        assert_eq!(table.next_deadline(), Some(lease));
    }
}

#[tokio::test]
async fn s10_connections_end_once_the_time_for_releases_is_over() {
    let (broker, mut stream) = broker(FakeStore::new()).await;
    tokio::time::pause();
    let begun = Instant::now();
    let ended = async {
        while stream.read_u8().await.is_ok() {}
        // The broker waits for this client's end now, and takes nobody new.
        assert!(TcpStream::connect(broker.local_addr()).await.is_err());
        begun.elapsed()
    };
    let (_, ended) = tokio::join!(broker.shutdown(), ended);
    assert!((RELEASES..CONNECTIONS).contains(&ended), "{ended:?}");
}

#[tokio::test]
async fn s10_a_request_in_a_commit_that_outlasts_the_stop_gets_its_answer() {
    let store = FakeStore::new();
    let (broker, mut stream) = broker(store.clone()).await;
    stream.write_all(&acquire(1, 0)).await.unwrap();
    committing(&store).await;
    let commit = async {
        tokio::time::sleep(RELEASES + Duration::from_millis(200)).await;
        store.gate.add_permits(1);
    };
    let (ended, replies, ()) = tokio::join!(broker.shutdown(), replies(stream), commit);
    ended.unwrap();
    assert!(
        matches!(replies[..], [Reply::Acquired { .. }]),
        "{replies:?}"
    );
}

#[tokio::test]
async fn a_panic_of_the_store_ends_the_broker() {
    struct Bug;
    impl Store for Bug {
        fn commit(&mut self, _: Batch) -> BoxFuture<'_, Result<Batch, CommitError>> {
            panic!("a bug, on purpose");
        }
        fn is_durable(&self) -> bool {
            true
        }
    }
    let (broker, mut stream) = broker(Bug).await;
    stream.write_all(&acquire(1, 0)).await.unwrap();
    let ended = broker.wait().await;
    assert!(matches!(ended, Err(BrokerError::Internal(_))), "{ended:?}");
    // Nobody can say what became of the request: no answer.
    assert_eq!(replies(stream).await, []);
}
