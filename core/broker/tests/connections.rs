//! The broker over real sockets: requests, violations and the ends of connections.

mod common;

use common::*;
use ticketing_wire::Reply;

#[tokio::test]
async fn grants_waits_and_releases() {
    let broker = memory_broker().await;
    let mut first = Peer::connect(broker.local_addr()).await;
    let mut second = Peer::connect(broker.local_addr()).await;
    let token = first.granted(&acquire(1, 0, 30, &["k"])).await;
    second.send(&acquire(1, 30, 30, &["k"])).await;
    second.send(&acquire(2, 0, 30, &["k"])).await;
    assert_eq!(second.reply().await, Reply::TimedOut { id: id(2) });
    first.send(&release(2, token, &["k"])).await;
    assert_eq!(first.reply().await, Reply::Released { id: id(2) });
    let next = second.grant().await;
    assert!(next > token);
    broker.shutdown().await.unwrap();
    assert_eq!(second.rest().await, []);
}

#[tokio::test]
async fn every_invalid_request_gets_its_code_or_the_end() {
    let text = include_str!("../../../tests/vectors/wire-v3.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let broker = memory_broker().await;
    let cases = vectors["invalid_requests"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let text = |field: &str| case[field].as_str().unwrap();
        let bytes: Vec<u8> = (0..text("bytes").len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text("bytes")[at..at + 2], 16).unwrap())
            .collect();
        let mut peer = Peer::connect(broker.local_addr()).await;
        peer.send(&bytes).await;
        let answer = peer.next().await;
        if let Some(code) = text("answer").strip_prefix('E') {
            let Some(Reply::Error { id: one, code: got }) = answer else {
                panic!("{}: {answer:?}", text("why"))
            };
            assert_eq!(
                (one, got.get().to_string()),
                (id(1), code.to_owned()),
                "{}",
                text("why")
            );
            // The broker keeps the connection.
            peer.granted(&acquire(2, 0, 1, &[text("why").replace(' ', "-").as_str()]))
                .await;
        } else {
            assert_eq!(answer, None, "{}", text("why"));
        }
    }
}

#[tokio::test]
async fn an_outstanding_id_used_again_is_a_violation() {
    let broker = memory_broker().await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    let token = peer.granted(&acquire(1, 0, 30, &["k"])).await;
    // An answered id may come again: it need not be remembered.
    assert_eq!(
        peer.granted(&acquire(1, 0, 30, &["free"])).await.get(),
        token.get() + 1
    );
    peer.send(&acquire(7, 30, 30, &["k"])).await;
    peer.send(&release(7, token, &["k"])).await;
    assert_eq!(peer.next().await, None);
}
