//! What a process does to itself at start.

use rustix::process::{Resource, Rlimit, getppid, getrlimit, setrlimit};

use crate::failure::Failure;

/// Makes this process end when its parent does, whatever ends the parent; `parent` is its id.
/// Where the system can't do that, the parent's own clean end has to be enough.
pub(crate) fn die_with(parent: u32) -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Failure::run("cannot follow the parent process", error))?;
    // The parent may have ended before the line above.
    let still_there =
        getppid().is_some_and(|id| u32::try_from(id.as_raw_nonzero().get()) == Ok(parent));
    if still_there {
        Ok(())
    } else {
        Err(Failure::Run("the parent process has ended".to_owned()))
    }
}

/// Raises the soft limit of open files to the hard one: a broker holds one for each connection.
/// Gives the limit then in force, `None` when there is none.
pub(crate) fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // A refusal leaves the limit as it was, and the log says how many connections fit.
        let _ = setrlimit(Resource::Nofile, raised);
    }
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(64),
                maximum: hard,
            },
        )
        .unwrap();
        assert_eq!(raise_file_limit(), hard);
    }

    #[test]
    fn a_process_with_another_parent_does_not_go_on() {
        assert!(die_with(u32::MAX).is_err());
        // Or this test's process would end with the thread that ran it.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(None).unwrap();
    }
}
