//! `ticketing bench` against a real broker.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::{Running, ticketing};

fn bench(address: &str, args: &[&str]) -> (i32, String, String) {
    let command = ticketing([&["bench", "--addr", address], args].concat());
    let (status, output, errors) = Running::start(command).end();
    (status.code().unwrap(), output.join("\n"), errors.join("\n"))
}

#[test]
fn the_table_has_the_rate_and_the_spread_of_both_calls() {
    let (_broker, address) = Running::serve(["--memory"]);
    let (code, output, errors) = bench(&address, &["--ops", "500", "--tasks", "8", "--keys", "2"]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        output.starts_with("500 acquire + release by 8 tasks on 2 keys in "),
        "{output}"
    );
    for word in [
        "ops/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "\nacquire ",
        "\nrelease ",
    ] {
        assert!(output.contains(word), "{word}: {output}");
    }
    assert!(
        output.ends_with("exclusion held, and every key's tokens rose"),
        "{output}"
    );
    assert_eq!(errors, "", "no progress bar where there is no terminal");
}

#[test]
fn json_is_one_object() {
    let (_broker, address) = Running::serve(["--memory"]);
    let (code, output, errors) = bench(&address, &["--ops", "200", "--json"]);
    assert_eq!(code, 0, "{errors}");
    let json: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(json["ops"], 200);
    assert_eq!((&json["tasks"], &json["keys"]), (&64.into(), &32.into()));
    assert_eq!(json["violations"], 0);
    let acquire = &json["acquire_us"];
    let [p50, max] = ["p50", "max"].map(|name| acquire[name].as_u64().unwrap());
    assert!(p50 <= max && max > 0, "{acquire}");
}

/// What only load brings about is counted; the run goes on.
#[test]
fn refusals_are_counted_by_kind() {
    let (_broker, address) = Running::serve(["--memory"]);
    let (code, output, errors) = bench(
        &address,
        &["--ops", "400", "--keys", "1", "--wait", "0", "--json"],
    );
    assert_eq!(code, 0, "{errors}");
    let json: serde_json::Value = serde_json::from_str(&output).unwrap();
    let timeouts = json["other_outcomes"]["Timeout"].as_u64().unwrap();
    assert_eq!(json["ops"].as_u64().unwrap() + timeouts, 400, "{json}");
}

#[test]
fn a_broker_that_is_not_there_is_one_line() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap().to_string();
    drop(gone);
    let (code, output, errors) = bench(&address, &[]);
    assert_eq!((code, output.as_str()), (1, ""));
    assert!(errors.starts_with("error: not connected: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn bad_numbers_name_the_flag_or_the_argument() {
    for (args, words) in [
        (["--ops", "0"], "--ops"),
        (["--tasks", "99999"], "--tasks"),
        (["--wait", "256"], "wait"),
        (["--lease", "0"], "lease"),
    ] {
        let (_broker, address) = Running::serve(["--memory"]);
        let (code, _, errors) = bench(&address, &args);
        assert_eq!(code, 2, "{args:?}: {errors}");
        assert!(errors.contains(words), "{args:?}: {errors}");
    }
}
