//! The proof that the suite bites: a testee that does one thing wrong fails exactly the scenarios
//! that it should.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ticketing_conformance::scenario::{self, Scenario};
use ticketing_conformance::suite::{self, CLEAN_END, Exceptions, Verdict};
use ticketing_conformance::testee::Program;

/// Runs the scenarios of these names against a Rust testee with a fault: which of them fail.
fn failing(fault: &str, names: &[&str]) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = scenario::load(&folder.join("scenarios")).expect("the scenarios can be read");
    let chosen: Vec<Scenario> = names
        .iter()
        .map(|name| {
            let found = all.iter().find(|scenario| scenario.name == *name);
            found
                .unwrap_or_else(|| panic!("no scenario {name:?}"))
                .clone()
        })
        .collect();
    let command = vec![
        env!("CARGO_BIN_EXE_testee-rust").to_owned(),
        "--fault".to_owned(),
        fault.to_owned(),
    ];
    let program = Program {
        command,
        environment: Vec::new(),
        face: "async".to_owned(),
    };
    let none = Exceptions::default();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let verdicts: BTreeMap<String, Verdict> = runtime
        .block_on(suite::run(&program, &chosen, &none, &none))
        .expect("the testee starts");
    let failed = verdicts
        .into_iter()
        .filter_map(|(name, verdict)| match verdict {
            Verdict::Failed(why) if name != CLEAN_END => {
                println!("{fault}: {name}: {why}");
                Some(name)
            }
            _ => None,
        });
    failed.collect()
}

/// The fault fails the first scenarios and passes the others.
fn bites(fault: &str, failed: &[&str], passed: &[&str]) {
    let wanted: BTreeSet<String> = failed.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        failing(fault, &[failed, passed].concat()),
        wanted,
        "{fault}"
    );
}

const ANSWERS: &str = "each answer is the outcome that it says";
const BOUNDS: &str = "durations at their bounds travel as they are";
const TOO_LONG: &str = "a duration above its range is refused and never clamped";
const LOST: &str = "a lost connection leaves the outcome unknown and asks nothing again";
const CANCELLED: &str = "a cancelled request that was sent alone ends its session";
const AFTER_CANCEL: &str = "a grant that comes after the cancel is given back";
const STORM: &str = "cancels around the delivery lose no grant";
const IN_LINE: &str = "the time in line counts against the lease";
const TELLS: &str = "a ticket tells its keys, its token and what remains";
const SCOPE: &str = "a ticket is released when its scope ends";
const SCOPE_ERROR: &str =
    "a ticket is released when its scope is left by an error, which is not hidden";
const CLOSE: &str = "closing tells what was sent from what was not";
const NO_ACQUIRE: &str = "making a broker object waits for nothing";
const TWICE: &str = "a second release says the same and sends nothing";

#[test]
fn an_error_that_is_swallowed() {
    bites(
        "swallows-an-error",
        &[ANSWERS, BOUNDS],
        &[LOST, TELLS, TWICE],
    );
}

#[test]
fn a_cancel_that_is_ignored() {
    bites(
        "ignores-cancel",
        &[CANCELLED, AFTER_CANCEL],
        &[ANSWERS, LOST, SCOPE],
    );
}

#[test]
fn a_completion_that_comes_twice() {
    bites("completes-twice", &[TELLS], &[NO_ACQUIRE]);
}

#[test]
fn a_token_that_is_cut() {
    bites(
        "truncates-the-token",
        &[ANSWERS, TELLS],
        &[LOST, NO_ACQUIRE],
    );
}

#[test]
fn an_acquire_that_is_made_again() {
    bites("acquires-again", &[LOST], &[TELLS, CANCELLED, IN_LINE]);
}

#[test]
fn a_grant_that_is_late() {
    bites(
        "hands-out-a-late-grant",
        &[IN_LINE],
        &[TELLS, BOUNDS, TWICE],
    );
}

#[test]
fn a_grant_that_crossed_a_cancel_and_is_forgotten() {
    bites("drops-a-crossed-grant", &[STORM], &[TELLS, SCOPE, LOST]);
}

#[test]
fn a_broker_object_that_stays_after_its_close() {
    bites("leaks-at-close", &[CLOSE, TELLS], &[]);
}

#[test]
fn a_duration_that_is_clamped() {
    bites("saturates-a-duration", &[TOO_LONG], &[BOUNDS, TELLS]);
}

#[test]
fn a_scope_that_forgets_its_ticket() {
    bites("forgets-the-scope", &[SCOPE, SCOPE_ERROR], &[TELLS, TWICE]);
}
