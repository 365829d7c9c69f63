//! What an event loop watches: readable from `raise` to `clear`.

use std::io;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    pub(super) struct Ends(OwnedFd);

    impl Ends {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Ends(eventfd(
                0,
                EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
            )?))
        }

        pub(super) fn raise(&self) -> io::Result<usize> {
            Ok(rustix::io::write(&self.0, &1_u64.to_ne_bytes())?)
        }

        pub(super) fn clear(&self) -> io::Result<usize> {
            Ok(rustix::io::read(&self.0, &mut [0_u8; 8])?)
        }

        pub(super) fn number(&self) -> i32 {
            self.0.as_raw_fd()
        }

        #[cfg(test)]
        pub(super) fn watched(&self) -> &OwnedFd {
            &self.0
        }
    }
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
mod system {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    pub(super) struct Ends {
        read: OwnedFd,
        write: OwnedFd,
    }

    impl Ends {
        pub(super) fn new() -> io::Result<Self> {
            let (read, write) = rustix::pipe::pipe()?;
            for end in [&read, &write] {
                rustix::io::ioctl_fionbio(end, true)?;
                rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
            }
            Ok(Ends { read, write })
        }

        pub(super) fn raise(&self) -> io::Result<usize> {
            Ok(rustix::io::write(&self.write, &[1])?)
        }

        pub(super) fn clear(&self) -> io::Result<usize> {
            Ok(rustix::io::read(&self.read, &mut [0_u8; 1])?)
        }

        pub(super) fn number(&self) -> i32 {
            self.read.as_raw_fd()
        }

        #[cfg(test)]
        pub(super) fn watched(&self) -> &OwnedFd {
            &self.read
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::io;

    /// There is none: a reader thread waits instead.
    pub(super) enum Ends {}

    impl Ends {
        pub(super) fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn raise(&self) -> io::Result<usize> {
            match *self {}
        }

        pub(super) fn clear(&self) -> io::Result<usize> {
            match *self {}
        }

        pub(super) fn number(&self) -> i32 {
            match *self {}
        }
    }
}

/// A descriptor and whether it is readable. Whoever has its lock decides.
pub(super) struct Descriptor {
    ends: system::Ends,
    raised: bool,
}

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Descriptor {
            ends: system::Ends::new()?,
            raised: false,
        })
    }

    pub(super) fn number(&self) -> i32 {
        self.ends.number()
    }

    /// What an event loop would see, asked of the system.
    #[cfg(all(test, unix))]
    pub(super) fn readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let watched = PollFd::new(self.ends.watched(), PollFlags::IN);
        poll(&mut [watched], Some(&Timespec::default())).expect("an open descriptor") == 1
    }

    /// Neither can fail but for a caller that closed or read a descriptor which is not its own;
    /// the watch is lost then, and nothing here can mend that.
    pub(super) fn set(&mut self, readable: bool) {
        if self.raised != readable {
            let changed = match readable {
                true => self.ends.raise(),
                false => self.ends.clear(),
            };
            if let Err(e) = changed {
                tracing::error!(error = %e, "the queue's descriptor was read or closed by others");
            }
            self.raised = readable;
        }
    }
}
