//! The broker's process, as its system sees it.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Running, eventually};

/// Lets this process, and those that it starts, open as many files as the system allows; gives
/// that number.
pub(crate) fn raise_file_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, all).expect("up to the hard limit");
    maximum.unwrap_or(u64::MAX)
}

/// A broker that serves.
pub(crate) struct Broker {
    pub(crate) running: Running,
    pub(crate) address: String,
}

impl Broker {
    /// `args` come after `serve`. One thread, so that what a thread keeps is there once.
    pub(crate) fn serve(args: &[&str]) -> Self {
        let all = [&["--worker-threads", "1"], args].concat();
        let (running, address) = Running::serve(all);
        Broker { running, address }
    }

    /// Resident memory, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
        kib.trim().parse().unwrap()
    }

    /// Open files.
    pub(crate) fn files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.running.id().as_raw_nonzero());
        fs::read_dir(folder).unwrap().count()
    }

    /// Waits until no more files are open than `before`.
    pub(crate) fn closes_all_but(&self, before: usize) {
        eventually("every connection is closed", || {
            (self.files() <= before).then_some(())
        });
    }

    /// Waits until its memory is near `base`: half above it is what connections that happened to
    /// end late may have cost.
    pub(crate) fn is_small_again(&self, base: u64) {
        let most = base + base / 2;
        let mut seen = 0;
        let small = || {
            seen = self.memory();
            (seen <= most).then_some(())
        };
        eventually(&format!("{most} KiB are enough"), small);
        println!("{base} KiB before, {seen} after");
    }

    fn proc(&self, file: &str) -> String {
        let id = self.running.id().as_raw_nonzero();
        fs::read_to_string(format!("/proc/{id}/{file}")).unwrap()
    }
}
