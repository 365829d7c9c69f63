//! S5: connections that are reset right after a request that waits.

use std::io::Write;

use ticketing_wire::Reply;

use crate::broker::Broker;
use crate::raw::{Raw, acquire, id, release};
use crate::size;

#[test]
fn s5_resets_right_after_a_waiting_request_leave_no_waiter() {
    let broker = Broker::serve(&["--memory"]);
    let mut holder = Raw::connect(&broker.address);
    let token = holder.granted(&acquire(1, 0, "k"));
    let reset = |count: u64| {
        for _ in 0..count {
            let mut client = Raw::connect(&broker.address);
            client.stream.write_all(&acquire(1, 255, "k")).unwrap();
            client.reset();
        }
    };
    let files = broker.files();
    reset(500);
    broker.closes_all_but(files);
    let base = broker.memory();

    reset(size(100_000, 10_000));
    broker.closes_all_but(files);
    broker.is_small_again(base);
    // A waiter that had stayed would be in the way of an attempt that does not queue.
    holder.send(&[release(2, token, "k"), acquire(3, 0, "k")].concat());
    assert_eq!(holder.reply(), Reply::Released { id: id(2) });
    holder.grant();
}
