//! The way between the sessions and the broker: writes, reads, half-closes and ends.

use std::collections::VecDeque;

use super::*;

/// What is between a session and the broker.
#[derive(Default)]
pub(super) struct Pipe {
    pub(super) node: Option<u8>,
    /// Handed over by a write that is under way.
    pub(super) writing: Option<Vec<Frame>>,
    pub(super) to_broker: VecDeque<Frame>,
    pub(super) half_closed: bool,
    pub(super) to_client: VecDeque<Reply>,
    /// Bytes of the first of those that were read already.
    pub(super) read: usize,
    /// The broker closes once everything is delivered.
    pub(super) closes: bool,
}

impl World {
    pub(super) fn transmit(&mut self) {
        if let Some(sid) = self.any_session() {
            self.write(sid);
        }
    }

    /// A write begins, or the one under way is done.
    pub(super) fn write(&mut self, sid: SessionId) {
        let pipe = self.pipes.get_mut(&sid).unwrap();
        if let Some(frames) = pipe.writing.take() {
            pipe.to_broker.extend(frames);
            self.rig.state.transmitted(self.rig.now, sid);
            return;
        }
        if pipe.half_closed {
            return;
        }
        let open = self.rig.is_open(sid);
        if let Some(frames) = self.rig.hand_over(sid) {
            self.note(|| format!("{sid} sends {frames:?}"));
            self.ledger.sent(&self.rig, sid, open, &frames);
            self.pipes.get_mut(&sid).unwrap().writing = Some(frames);
        } else if self.rig.shut.contains(&sid) {
            self.note(|| format!("{sid} is half-closed"));
            self.pipes.get_mut(&sid).unwrap().half_closed = true;
        }
    }

    pub(super) fn broker_reads(&mut self) {
        if let Some(sid) = self.any_session() {
            self.broker_read(sid);
        }
    }

    pub(super) fn broker_read(&mut self, sid: SessionId) {
        let pipe = self.pipes.get_mut(&sid).unwrap();
        if pipe.closes {
            return;
        }
        let (node, frame) = (pipe.node, pipe.to_broker.pop_front());
        if let Some(frame) = frame {
            self.broker
                .read(self.rig.now, &mut self.rng, sid, node, frame);
        } else if pipe.half_closed && pipe.writing.is_none() {
            pipe.closes = true;
            self.broker.half_close(sid);
        }
        self.post();
    }

    /// What the broker said goes into the pipes.
    pub(super) fn post(&mut self) {
        for (sid, reply) in std::mem::take(&mut self.broker.out) {
            if let Some(pipe) = self.pipes.get_mut(&sid) {
                pipe.to_client.push_back(reply);
            }
        }
    }

    pub(super) fn deliver(&mut self) {
        if let Some(sid) = self.any_session() {
            let most = *[1, 7, 19, 40, 500].choose(&mut self.rng).unwrap();
            self.read(sid, most);
        }
    }

    /// The client reads up to so many bytes, or the end of the stream.
    pub(super) fn read(&mut self, sid: SessionId, most: usize) {
        if self.rig.over(sid).is_some() {
            self.forget(sid);
            return;
        }
        let pipe = self.pipes.get_mut(&sid).unwrap();
        let mut bytes = Vec::new();
        let mut lengths = Vec::new();
        for reply in &pipe.to_client {
            let from = bytes.len();
            reply.encode(&mut bytes);
            lengths.push(bytes.len() - from);
        }
        if bytes.is_empty() {
            if pipe.closes {
                self.note(|| format!("{sid} reads the end of the stream"));
                self.rig.eof(sid);
            }
            return;
        }
        let from = pipe.read;
        let to = (from + most).min(bytes.len());
        pipe.read = to;
        for length in lengths {
            if pipe.read < length {
                break;
            }
            pipe.read -= length;
            let reply = pipe.to_client.pop_front().unwrap();
            if self.trace {
                eprintln!("{sid} reads {reply:?}");
            }
            self.ledger.heard(self.rig.now, sid, reply);
        }
        let half_read = pipe.read > 0;
        assert_eq!(self.rig.read(sid, &bytes[from..to]), half_read);
        assert_eq!(self.rig.over(sid), None, "all of that was well-formed");
    }

    pub(super) fn end(&mut self, sid: SessionId) {
        self.note(|| format!("{sid} ends"));
        self.rig.eof(sid);
        self.forget(sid);
    }

    pub(super) fn forget(&mut self, sid: SessionId) {
        self.check(false);
        self.rig.forget(sid);
        self.pipes.remove(&sid);
        self.broker.disconnect(sid);
        self.post();
        self.check(false);
    }
}
