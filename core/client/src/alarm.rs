//! Wakes tasks at a time, without a runtime: calls may be awaited on threads that have none, and
//! a validity ends whether or not anything drives the broker object.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// The longest pause of the thread. Its timer does not run while the machine sleeps, the clock of
/// C16 does; so that is looked at again at least this often.
const SLICE: Duration = Duration::from_secs(1);

/// One for each broker object: after a `fork` the child's own has its own thread (C30). The thread
/// is there while somebody sleeps, and for at most a second more.
#[derive(Default)]
pub(crate) struct Alarm(Arc<Inner>);

#[derive(Default)]
struct Inner {
    sleepers: Mutex<Sleepers>,
    earlier: Condvar,
}

#[derive(Default)]
struct Sleepers {
    by_time: BTreeMap<(Moment, u64), Waker>,
    last_number: u64,
    has_thread: bool,
}

impl Alarm {
    /// Ends at `at`.
    pub(crate) fn sleep_until(&self, at: Moment) -> Sleep<'_> {
        Sleep {
            inner: &self.0,
            at,
            number: None,
        }
    }

    /// The output of `future`, or `None` once `at` has passed.
    pub(crate) async fn until<F: Future>(&self, at: Moment, future: F) -> Option<F::Output> {
        let (mut future, mut sleep) = (pin!(future), pin!(self.sleep_until(at)));
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

pub(crate) struct Sleep<'a> {
    inner: &'a Arc<Inner>,
    at: Moment,
    /// Its place among the sleepers, once it has been polled.
    number: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at <= Moment::now() {
            return Poll::Ready(());
        }
        let (inner, at) = (self.inner, self.at);
        let mut sleepers = inner.lock();
        let number = *self.number.get_or_insert_with(|| {
            sleepers.last_number += 1;
            sleepers.last_number
        });
        sleepers.by_time.insert((at, number), cx.waker().clone());
        if !sleepers.has_thread {
            let inner = Arc::clone(inner);
            let name = "ticketing-alarm".to_owned();
            thread::Builder::new()
                .name(name)
                .spawn(move || inner.ring())
                .expect("the system has room for one thread more");
            sleepers.has_thread = true;
        } else if sleepers.by_time.first_key_value().map(|(k, _)| *k) == Some((at, number)) {
            inner.earlier.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.inner.lock().by_time.remove(&(self.at, number));
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: wakes whoever's time has come, until nobody sleeps.
    fn ring(&self) {
        let mut sleepers = self.lock();
        loop {
            let now = Moment::now();
            let later = sleepers.by_time.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut sleepers.by_time, later);
            if !due.is_empty() {
                drop(sleepers);
                due.into_values().for_each(Waker::wake);
                sleepers = self.lock();
                continue;
            }
            let Some((at, _)) = sleepers.by_time.keys().next() else {
                sleepers.has_thread = false;
                return;
            };
            let pause = now.until(*at).min(SLICE);
            let waited = self.earlier.wait_timeout(sleepers, pause);
            sleepers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Instant;

    use super::*;

    /// A bound on what must happen.
    const SOON: Duration = Duration::from_secs(30);

    struct Bell(mpsc::Sender<u64>, u64);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn c17_sleepers_are_woken_in_the_order_of_their_times_and_the_thread_ends() {
        let alarm = Alarm::default();
        let (tell, woken) = mpsc::channel();
        let start = Moment::now();
        let started = Instant::now();
        // Each is earlier than the thread knew; the first is withdrawn.
        let mut sleeps: Vec<_> = [9000, 900, 1200, 600]
            .map(|ms| {
                (
                    ms,
                    Box::pin(alarm.sleep_until(start + Duration::from_millis(ms))),
                )
            })
            .into();
        for (ms, sleep) in &mut sleeps {
            let waker = Waker::from(Arc::new(Bell(tell.clone(), *ms)));
            let mut cx = Context::from_waker(&waker);
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
        }
        drop(sleeps.remove(0));
        for expected in [600, 900, 1200] {
            assert_eq!(woken.recv_timeout(SOON), Ok(expected));
            assert!(started.elapsed() >= Duration::from_millis(expected));
        }
        let mut cx = Context::from_waker(Waker::noop());
        for (_, sleep) in &mut sleeps {
            assert!(sleep.as_mut().poll(&mut cx).is_ready());
        }
        while alarm.0.lock().has_thread {
            assert!(started.elapsed() < SOON);
            thread::yield_now();
        }
        assert!(woken.try_recv().is_err(), "the first was withdrawn");
    }
}
