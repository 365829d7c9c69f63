//! The signals that concern a command.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::failure::Failure;

/// What a signal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Look again.
    Nothing,
    /// A child has ended, stopped or gone on.
    Child,
    Stop,
    Continue,
    /// For the command.
    Forward(Signal),
}

/// Those that end a program that does nothing about them.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
const OTHERS: [(Signal, Event); 6] = [
    (Signal::USR1, Event::Forward(Signal::USR1)),
    (Signal::USR2, Event::Forward(Signal::USR2)),
    (Signal::WINCH, Event::Forward(Signal::WINCH)),
    (Signal::TSTP, Event::Stop),
    (Signal::CONT, Event::Continue),
    (Signal::CHILD, Event::Child),
];

/// The signals that this process was started to ignore, a bit each; none where nobody tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Listens to signals; while it does, none of them has its usual effect.
pub(crate) struct Signals(Vec<(unix::Signal, Event)>);

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ending = ENDING.map(|signal| (signal, Event::Forward(signal)));
        let ignored = ignored();
        // What is ignored (HUP under nohup, say) stays so, here and in the command.
        let all = ending.into_iter().chain(OTHERS).filter(|(signal, event)| {
            *event == Event::Child || ignored & 1 << (signal.as_raw() - 1) == 0
        });
        let streams = all.map(|(number, event)| {
            let stream = signal(SignalKind::from_raw(number.as_raw()))?;
            Ok((stream, event))
        });
        let streams = streams.collect::<std::io::Result<_>>();
        let streams = streams.map_err(|error| Failure::run("cannot listen to signals", error))?;
        Ok(Signals(streams))
    }

    /// What the next signal says.
    pub(crate) async fn next(&mut self) -> Event {
        poll_fn(|cx| {
            for (stream, event) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*event);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The number of the next signal that asks this process to end. One that asks it to stop does.
    pub(crate) async fn asked_to_end(&mut self) -> u8 {
        loop {
            match self.next().await {
                Event::Forward(signal) if ENDING.contains(&signal) => {
                    return u8::try_from(signal.as_raw()).unwrap_or(0);
                }
                Event::Stop => {
                    let this = rustix::process::getpid();
                    let _ = rustix::process::kill_process(this, Signal::STOP);
                }
                _ => {}
            }
        }
    }
}
