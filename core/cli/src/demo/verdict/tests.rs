use super::*;

fn term(token: u64, entered: u64, left: u64, accounts: [u32; 2]) -> Term {
    Term {
        token,
        entered: Duration::from_secs(entered),
        left: Duration::from_secs(left),
        accounts,
    }
}

fn audit(balances: &[i64], tokens: &[u64]) -> Audit {
    let opening = 100 * i64::try_from(balances.len()).unwrap();
    Audit {
        total: balances.iter().sum(),
        balances: balances.to_vec(),
        opening,
        wrong: Vec::new(),
        tokens: tokens.to_vec(),
        unfenced: Vec::new(),
    }
}

/// Two workers, three terms: two on account 0, one after the other; one beside them.
fn sound() -> Evidence {
    Evidence {
        shares: vec![2, 1],
        terms: vec![
            vec![term(5, 1, 2, [0, 1]), term(9, 4, 5, [2, 3])],
            vec![term(7, 2, 4, [0, 4])],
        ],
        took: Duration::from_secs(5),
        before: audit(&[100, 100, 100, 100, 100], &[]),
        after: audit(&[80, 110, 90, 110, 110], &[5, 7, 9]),
    }
}

/// The names of the checks that do not hold once `sabotage` was done.
fn fails(sabotage: impl FnOnce(&mut Evidence)) -> Vec<&'static str> {
    let mut evidence = sound();
    sabotage(&mut evidence);
    judge(&evidence)
        .into_iter()
        .filter(|check| !check.holds)
        .map(|check| check.name)
        .collect()
}

#[test]
fn sound_evidence_passes_every_check() {
    assert!(fails(|_| {}).is_empty());
    let found: Vec<_> = judge(&sound())
        .into_iter()
        .map(|check| check.found)
        .collect();
    let expected = [
        "3 of 3, 3 in the ledger, by 2 processes in 5.0 s",
        "3 different, 0 out of order",
        "6 terms on 5 keys, 0 overlap",
        "500 before, 500 after; 5 of 5 accounts match the ledger",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_transfer_that_was_not_made_is_seen() {
    assert_eq!(fails(|e| e.shares[1] = 2), ["transfers"]);
    assert_eq!(
        fails(|e| e.shares = vec![1, 2]),
        ["transfers"],
        "each worker makes its share"
    );
    assert_eq!(fails(|e| e.shares = vec![3]), ["transfers"]);
    // In the ledger twice.
    assert_eq!(fails(|e| e.after.tokens.push(9)), ["transfers"]);
    // Not in the ledger.
    assert_eq!(
        fails(|e| e.after.tokens.truncate(2)),
        ["transfers", "tokens"]
    );
}

#[test]
fn a_token_given_twice_or_out_of_order_is_seen() {
    let twice = fails(|e| {
        e.terms[0][1].token = 7;
        e.after.tokens = vec![5, 7, 7];
    });
    assert_eq!(twice, ["tokens"]);
    let falling = fails(|e| {
        e.terms[0][0].token = 8;
        e.after.tokens = vec![8, 7, 9];
    });
    assert_eq!(falling, ["tokens"]);
    // On keys that have nothing in common the order means nothing.
    let apart = fails(|e| {
        e.terms[0][1].token = 1;
        e.after.tokens = vec![5, 7, 1];
    });
    assert!(apart.is_empty());
}

#[test]
fn a_fence_that_is_behind_is_seen() {
    assert_eq!(fails(|e| e.after.unfenced.push(3)), ["tokens"]);
    assert_eq!(fails(|e| e.after.tokens = vec![5, 7, 8]), ["tokens"]);
}

#[test]
fn two_holders_at_a_time_are_seen() {
    assert_eq!(
        fails(|e| e.terms[1][0].entered = Duration::from_millis(1999)),
        ["exclusion"]
    );
    // The first holder stays for longer than the second.
    assert_eq!(
        fails(|e| e.terms[0][0].left = Duration::from_secs(9)),
        ["exclusion"]
    );
    // The third comes while the first is still there, though the second has left.
    let third = fails(|e| {
        e.terms[0][0].left = Duration::from_secs(6);
        e.terms[0][1].accounts = [0, 3];
    });
    assert_eq!(third, ["exclusion"]);
    // No terms prove nothing.
    let none = fails(|e| {
        e.shares = vec![0, 0];
        e.terms = vec![Vec::new(), Vec::new()];
        e.after = e.before.clone();
    });
    assert_eq!(none, ["exclusion"]);
}

#[test]
fn money_that_comes_or_goes_is_seen() {
    assert_eq!(fails(|e| e.after.total += 1), ["balance"]);
    assert_eq!(
        fails(|e| e.after.wrong.push((1, 2, 3))),
        ["balance"],
        "the total may still be right"
    );
    assert_eq!(fails(|e| e.before.total -= 1), ["balance"]);
}

fn late(unfenced: bool) -> Late {
    let mut after = audit(&[100, 100], &[1]);
    if unfenced {
        after.total -= 25;
        after.wrong.push((0, 75, 100));
    }
    Late {
        unfenced,
        token: 5,
        since: Duration::from_secs(10),
        lease: Duration::from_secs(2),
        next: term(6, 12, 13, [2, 0]),
        written: unfenced,
        after,
    }
}

fn late_holds(unfenced: bool, sabotage: impl FnOnce(&mut Late)) -> bool {
    let mut late = late(unfenced);
    sabotage(&mut late);
    judge_late(&late).holds
}

#[test]
fn a_late_write_does_harm_without_the_fence_and_none_with_it() {
    let check = judge_late(&late(true));
    assert!(check.holds);
    let found = "committed: 25 are gone; 1 of 2 accounts match the ledger, account-0 has 75 \
        instead of 100";
    assert_eq!(check.found, found);
    let check = judge_late(&late(false));
    assert!(check.holds);
    assert_eq!(check.found, "refused; 2 of 2 accounts match the ledger");
}

#[test]
fn a_stage_that_proves_nothing_fails() {
    assert!(!late_holds(true, |late| late.written = false));
    assert!(
        !late_holds(true, |late| late.after = audit(&[100, 100], &[1])),
        "no harm was done"
    );
    assert!(
        !late_holds(false, |late| late.written = true),
        "the fence let it through"
    );
    assert!(
        !late_holds(false, |late| late.after.total += 1),
        "refused, and yet harm was done"
    );
    assert!(!late_holds(false, |late| late.after.wrong.push((0, 1, 2))));
    for unfenced in [true, false] {
        let early = Duration::from_millis(11_999);
        assert!(
            !late_holds(unfenced, |late| late.next.entered = early),
            "before the lease ended"
        );
        assert!(
            !late_holds(unfenced, |late| late.next.token = 5),
            "not a later token"
        );
    }
}
