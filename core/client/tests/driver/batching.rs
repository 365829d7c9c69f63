//! How requests share writes.

use ticketing_client::TicketBroker;

use crate::peer::{Peer, SOON, ask, until};

const TASKS: usize = 32;
/// An `A` frame with a key of six bytes.
const FRAME: usize = 3 + 10 + 6;

/// On the client's one worker thread, as a burst of replies would have it: all tasks are ready
/// before any of them runs.
async fn all_ask(broker: TicketBroker) {
    for n in 0..TASKS {
        drop(ask(&broker, &format!("key-{n:02}"), 60));
    }
}

#[test]
fn c7_requests_that_are_ready_together_leave_in_one_write() {
    let client = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let here = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    here.block_on(async {
        for _ in 0..20 {
            let peer = Peer::start().await;
            let broker = {
                let _context = client.enter();
                peer.connect()
            };
            let mut conn = peer.session().await;
            until("a session", || broker.stats().sessions_usable == 1).await;
            client.spawn(all_ask(broker));

            let mut first = vec![0; 64 * 1024];
            let n = tokio::time::timeout(SOON, conn.tcp().peek(&mut first)).await;
            let n = n.expect("a request").unwrap();
            assert_eq!(n, TASKS * FRAME, "bytes of the first write");
            for _ in 0..TASKS {
                conn.next().await;
            }
        }
    });
    client.shutdown_background();
}
