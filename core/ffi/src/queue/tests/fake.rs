//! Calls whose ends are decided by a test, and a ledger of what became of each grant.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shuttle::sync::Mutex;

use super::super::{Call, End};

/// All calls of a test, by their numbers.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<Vec<Slot>>>);

#[derive(Default, Clone)]
pub(super) struct Slot {
    /// The broker has granted it.
    granted: bool,
    /// What is left of its lease is less than its caller needs.
    pub(super) stale: bool,
    waker: Option<Waker>,
    /// Its call was cancelled or dropped before its end, or its grant came too late: the client
    /// gives it back.
    pub(super) given_up: u32,
    /// It was a ticket, and the queue released that.
    pub(super) released: u32,
}

impl World {
    pub(super) fn new(calls: usize) -> Self {
        World(Arc::new(Mutex::new(vec![Slot::default(); calls])))
    }

    pub(super) fn with<R>(&self, id: usize, use_it: impl FnOnce(&mut Slot) -> R) -> R {
        use_it(&mut self.0.lock().unwrap()[id])
    }

    pub(super) fn call(&self, id: usize) -> FakeCall {
        FakeCall {
            id,
            world: self.clone(),
            ended: false,
        }
    }

    pub(super) fn grant(&self, id: usize) {
        self.wake(id, |slot| slot.granted = true);
    }

    pub(super) fn wake_for_nothing(&self, id: usize) {
        self.wake(id, |_| {});
    }

    /// As the client does it: wakers run outside of its lock.
    fn wake(&self, id: usize, change: impl FnOnce(&mut Slot)) {
        let waker = self.with(id, |slot| {
            change(slot);
            slot.waker.clone()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(super) struct FakeCall {
    id: usize,
    world: World,
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Granted,
    /// The call was cancelled before its end.
    GivenUp,
    /// The grant was cancelled in the queue.
    GivenBack,
    /// The grant lay too long.
    Stale,
    TagInUse,
}

#[derive(Clone)]
pub(super) struct FakeEnd {
    pub(super) kind: Kind,
    call: Option<(usize, World)>,
}

impl FakeEnd {
    /// The number of its call; none for a tag in use.
    pub(super) fn id(&self) -> Option<usize> {
        self.call.as_ref().map(|(id, _)| *id)
    }
}

impl FakeCall {
    fn end(&mut self, kind: Kind) -> FakeEnd {
        assert!(!self.ended, "a call is left alone after its end");
        self.ended = true;
        FakeEnd {
            kind,
            call: Some((self.id, self.world.clone())),
        }
    }
}

impl Call for FakeCall {
    type End = FakeEnd;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<FakeEnd> {
        let kind = self.world.with(self.id, |slot| {
            if !slot.granted {
                slot.waker = Some(cx.waker().clone());
                return None;
            }
            slot.given_up += u32::from(slot.stale);
            Some(match slot.stale {
                true => Kind::Stale,
                false => Kind::Granted,
            })
        });
        kind.map_or(Poll::Pending, |kind| Poll::Ready(self.end(kind)))
    }

    fn cancel(&mut self) -> FakeEnd {
        self.world.with(self.id, |slot| slot.given_up += 1);
        self.end(Kind::GivenUp)
    }
}

impl Drop for FakeCall {
    fn drop(&mut self) {
        if !self.ended && !std::thread::panicking() {
            self.world.with(self.id, |slot| slot.given_up += 1);
        }
    }
}

impl End for FakeEnd {
    fn look_again(&mut self, cancelled: bool) {
        let Some((id, world)) = &self.call else {
            return;
        };
        if self.kind == Kind::Granted {
            self.kind = world.with(*id, |slot| {
                slot.released += u32::from(cancelled || slot.stale);
                match (cancelled, slot.stale) {
                    (true, _) => Kind::GivenBack,
                    (false, true) => Kind::Stale,
                    (false, false) => Kind::Granted,
                }
            });
        }
    }

    fn tag_in_use(_: i64) -> Self {
        FakeEnd {
            kind: Kind::TagInUse,
            call: None,
        }
    }
}
