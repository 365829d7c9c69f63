//! When to connect, and whom to ask: back-off (C22, C24) and topology (C14, C23).

use std::time::Duration;

use rand::RngExt;
use ticketing_wire::{Mode, Slot};

use super::*;
use crate::error::TicketError;

/// Back-off after a fault: from here, doubling, to `BACKOFF_MAX` (C22).
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_millis(3200);
/// As many faults as mean the slowest back-off: a rejected token (C24).
const REJECTED: u32 = u32::MAX;
/// A session that lasted so long resets the back-off.
const STEADY: Duration = Duration::from_secs(1);
/// A single broker is held with so many connections (C23).
const SINGLE_LINKS: usize = 2;

pub(crate) type LinkId = usize;

/// One connection that the broker object keeps up.
pub(super) struct Link {
    /// Which address it connects to.
    pub(super) node: usize,
    stage: Stage,
    /// Faults in a row.
    faults: u32,
    /// Sessions in a row that ended through `M`, `E3` or `E4`.
    redirects: u32,
    /// This node's last attempt was a rejected token (C24).
    rejected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Down; opens at this moment, or never while `None` (closing).
    Down(Option<Moment>),
    /// To be picked up by the driver.
    Due,
    Connecting,
    Up(SessionId),
}

/// Why a connection attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The broker rejected the client token.
    Rejected,
    /// Anything else, in words.
    Other(String),
}

/// How a session left its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    Retired,
    Redirected,
    Fault,
}

/// Whom requests go to.
pub(super) enum Topology {
    Single,
    Cluster {
        nodes: u8,
        /// The node that says of itself that it leads.
        leader: Option<Slot>,
        /// The slot named last, by anybody.
        named: Option<Slot>,
    },
}

impl Topology {
    pub(super) fn new(addresses: usize) -> Self {
        match addresses {
            1 => Topology::Single,
            n => {
                let nodes = u8::try_from(n).expect("at most 5 addresses");
                Topology::Cluster {
                    nodes,
                    leader: None,
                    named: None,
                }
            }
        }
    }

    pub(super) fn is_single(&self) -> bool {
        matches!(self, Topology::Single)
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        match self {
            Topology::Single => false,
            Topology::Cluster { nodes, .. } => slot.get() < *nodes,
        }
    }

    /// `node` said with an `M` that it does not lead, and perhaps who does.
    pub(super) fn moved(&mut self, node: usize, slot: Option<Slot>) {
        if let Topology::Cluster { leader, named, .. } = self {
            let other = |s: &Slot| usize::from(s.get()) != node;
            *leader = leader.filter(other);
            *named = slot.or(named.filter(other));
        }
    }

    /// A node that has no session names itself no more.
    pub(super) fn unreachable(&mut self, node: usize) {
        if let Topology::Cluster { leader, .. } = self {
            *leader = leader.filter(|s| usize::from(s.get()) != node);
        }
    }

    /// The node to ask: the one that names itself leader, else the one named last (C14).
    fn target(&self) -> Option<usize> {
        match self {
            Topology::Single => None,
            Topology::Cluster { leader, named, .. } => leader.or(*named).map(|s| s.get().into()),
        }
    }
}

/// The links of a broker object: two to a single broker, one to each node of a cluster.
pub(super) fn for_addresses(addresses: usize) -> Vec<Link> {
    let nodes = match addresses {
        1 => vec![0; SINGLE_LINKS],
        n => (0..n).collect(),
    };
    let link = |node| Link {
        node,
        stage: Stage::Down(None),
        faults: 0,
        redirects: 0,
        rejected: false,
    };
    nodes.into_iter().map(link).collect()
}

impl State {
    /// What the hello of a node must say.
    pub(crate) fn expected_mode(&self, link: LinkId) -> Mode {
        match self.topology {
            Topology::Single => Mode::Single,
            Topology::Cluster { .. } => {
                let place = u8::try_from(self.links[link].node).expect("at most 5 nodes");
                Mode::Cluster(Slot::new(place).expect("at most 5 nodes"))
            }
        }
    }

    /// The address that a link connects to.
    pub(crate) fn node_of(&self, link: LinkId) -> usize {
        self.links[link].node
    }

    /// A connection that the driver is to open now.
    pub(crate) fn next_connect(&mut self) -> Option<LinkId> {
        let link = self.links.iter().position(|l| l.stage == Stage::Due)?;
        self.links[link].stage = Stage::Connecting;
        Some(link)
    }

    /// An attempt failed.
    pub(crate) fn connect_failed(&mut self, now: Moment, link: LinkId, failure: Failure) {
        let node = self.links[link].node;
        let rejected = failure == Failure::Rejected;
        for l in self.links.iter_mut().filter(|l| l.node == node) {
            l.rejected = rejected;
        }
        self.last_error = Some(match failure {
            Failure::Rejected => "the broker rejected the client token".to_owned(),
            Failure::Other(why) => why,
        });
        let l = &mut self.links[link];
        l.redirects = 0;
        l.faults = if rejected {
            REJECTED
        } else {
            l.faults.saturating_add(1)
        };
        let pause = self.backoff(link);
        self.links[link].stage = Stage::Down(None);
        if self.wants_links() {
            self.schedule_link(link, now + pause);
        }
        self.topology.unreachable(node);
        self.usable_changed();
        self.dispatch(now);
    }

    /// C24: while no session is usable and every address's last attempt was a rejected token,
    /// nothing waits.
    pub(super) fn fail_rejected(&mut self) {
        let rejected = self.links.iter().all(|l| l.rejected) && !self.has_usable_session();
        if rejected && self.counters.waiting > 0 {
            let detail = "check the client token here and `client_tokens` at the broker".into();
            self.fail_unsent(&TicketError::Auth { detail });
        }
    }

    /// Whether what is down is to come up again: at the end only for releases (C27).
    fn wants_links(&self) -> bool {
        match self.life {
            Life::Open => true,
            Life::Closing => self.releases_remain() && !self.has_usable_session(),
            Life::Closed => false,
        }
    }

    fn backoff(&mut self, link: LinkId) -> Duration {
        let faults = self.links[link].faults;
        let doublings = faults.saturating_sub(1).min(5);
        let full = (BACKOFF_FIRST * 2u32.pow(doublings)).min(BACKOFF_MAX);
        full.mul_f64(self.rng.random_range(0.5..=1.0))
    }

    /// A connection that came too late to be wanted.
    pub(super) fn link_unwanted(&mut self, link: LinkId) {
        self.links[link].stage = Stage::Down(None);
    }

    /// Of all links, in a row.
    #[cfg(test)]
    pub(crate) fn faults(&self) -> u32 {
        self.links.iter().map(|l| l.faults).sum()
    }

    /// Opens a link at `at`.
    pub(super) fn schedule_link(&mut self, link: LinkId, at: Moment) {
        let old = match self.links[link].stage {
            Stage::Down(old) => old,
            Stage::Due | Stage::Connecting | Stage::Up(_) => return,
        };
        self.links[link].stage = Stage::Down(Some(at));
        self.set_timer(Timer::Link(link), old, Some(at));
    }

    pub(super) fn link_due(&mut self, link: LinkId) {
        if let Stage::Down(Some(_)) = self.links[link].stage {
            self.links[link].stage = Stage::Due;
            self.wake_driver();
        }
    }

    pub(super) fn link_up(&mut self, link: LinkId, session: SessionId) {
        let node = self.links[link].node;
        for l in self.links.iter_mut().filter(|l| l.node == node) {
            l.rejected = false;
        }
        let l = &mut self.links[link];
        if l.faults == REJECTED {
            l.faults = 0;
        }
        l.stage = Stage::Up(session);
    }

    /// A link's session left it: when is the next one opened?
    pub(super) fn link_down(&mut self, now: Moment, link: LinkId, opened: Moment, leave: Leave) {
        let waiting = self.requests_wait();
        let l = &mut self.links[link];
        l.stage = Stage::Down(None);
        if opened.until(now) >= STEADY {
            l.faults = 0;
            l.redirects = 0;
        }
        if leave != Leave::Retired {
            self.topology.unreachable(l.node);
        }
        let pause = match leave {
            // No fault (C22): the replacement opens at once.
            Leave::Retired => Duration::ZERO,
            // C14: the first at once, further ones every 100 to 500 ms while requests wait.
            Leave::Redirected => {
                l.redirects += 1;
                match l.redirects {
                    1 => Duration::ZERO,
                    _ if waiting => self.redirect_pause(),
                    _ => {
                        l.faults = l.faults.saturating_add(1);
                        self.backoff(link)
                    }
                }
            }
            Leave::Fault => {
                l.redirects = 0;
                l.faults = l.faults.saturating_add(1);
                self.backoff(link)
            }
        };
        if self.wants_links() {
            self.schedule_link(link, now + pause);
        }
    }

    fn redirect_pause(&mut self) -> Duration {
        Duration::from_millis(self.rng.random_range(100..=500))
    }

    /// A request came while redirected links are backing off: they need not wait so long (C14).
    pub(super) fn hasten_links(&mut self, now: Moment) {
        if self.has_usable_session() {
            return;
        }
        for link in 0..self.links.len() {
            let l = &self.links[link];
            if let Stage::Down(Some(at)) = l.stage
                && l.redirects > 1
                && now.until(at) > Duration::from_millis(500)
            {
                let pause = self.redirect_pause();
                self.schedule_link(link, now + pause);
            }
        }
    }

    /// Opens a session at once, for the releases that remain at `close` (C27). In a cluster each
    /// node is asked, for any of them may lead or know who does.
    pub(super) fn open_for_releases(&mut self, now: Moment) {
        let idle = |l: &Link| l.stage == Stage::Down(None);
        let links = match self.topology {
            Topology::Single if self.links.iter().all(idle) => 1,
            Topology::Single => 0,
            Topology::Cluster { .. } => self.links.len(),
        };
        for link in 0..links {
            if idle(&self.links[link]) {
                self.schedule_link(link, now);
            }
        }
    }

    /// Stops opening connections.
    pub(super) fn stop_links(&mut self) {
        for link in 0..self.links.len() {
            if let Stage::Down(Some(at)) = self.links[link].stage {
                self.set_timer(Timer::Link(link), Some(at), None);
            }
            if !matches!(self.links[link].stage, Stage::Connecting | Stage::Up(_)) {
                self.links[link].stage = Stage::Down(None);
            }
        }
    }

    /// A node said who leads (`L`).
    pub(super) fn told_leader(&mut self, sid: SessionId, slot: Option<Slot>) {
        let Topology::Cluster { leader, named, .. } = &mut self.topology else {
            return;
        };
        let session = self.sessions.get_mut(&sid).expect("it was read from");
        session.told_leader = true;
        let own = u8::try_from(session.node).ok().and_then(Slot::new);
        if slot == own {
            *leader = own;
        } else if *leader == own {
            *leader = None;
        }
        if slot.is_some() {
            *named = slot;
        } else if *named == own {
            *named = None;
        }
        self.usable_changed();
    }

    /// Whether a session takes new requests now (C14).
    pub(super) fn takes_requests(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        session.is_open()
            && session.told_leader
            && (self.topology.is_single() || self.topology.target() == Some(session.node))
    }

    pub(super) fn has_usable_session(&self) -> bool {
        self.sessions.keys().any(|id| self.takes_requests(*id))
    }

    /// Sessions opened, closed or re-targeted: tell those who wait, place what was pinned.
    pub(super) fn usable_changed(&mut self) {
        let readiness = match (self.life, self.has_usable_session()) {
            (Life::Open, true) => Readiness::Usable,
            (Life::Open, false) => Readiness::Waiting,
            _ => Readiness::Closed,
        };
        self.readiness
            .send_if_modified(|was| std::mem::replace(was, readiness) != readiness);
        let held: Vec<AcquireId> = self
            .acquires
            .iter()
            .filter(|(_, a)| !a.after.is_empty() && a.is_placeable())
            .map(|(id, _)| *id)
            .collect();
        for id in held {
            self.place(id);
        }
    }
}
