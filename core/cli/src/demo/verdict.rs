//! What the demo saw, and whether it is what Ticketing promises. Nothing here runs anything, so
//! that a test can put in front of it evidence of every thing that could go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::bank::{Audit, key};
use super::term::Term;

/// What the workers did and what the accounts looked like afterwards.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    /// How many transfers each worker was asked for.
    pub(crate) shares: Vec<u32>,
    /// The terms of each worker.
    pub(crate) terms: Vec<Vec<Term>>,
    /// How long it took.
    pub(crate) took: Duration,
    /// The accounts before.
    pub(crate) before: Audit,
    /// The accounts after.
    pub(crate) after: Audit,
}

/// How the write of a holder that was stopped past its lease ended.
#[derive(Debug, Clone)]
pub(crate) struct Late {
    /// It wrote without the fence, to a copy of the accounts.
    pub(crate) unfenced: bool,
    /// Its token.
    pub(crate) token: u64,
    /// When it asked for its ticket.
    pub(crate) since: Duration,
    /// Its lease.
    pub(crate) lease: Duration,
    /// The next holder's term, which came while it was stopped.
    pub(crate) next: Term,
    /// Its write was committed (or else refused as stale).
    pub(crate) written: bool,
    /// The accounts afterwards.
    pub(crate) after: Audit,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    /// What was looked at.
    pub(crate) name: &'static str,
    /// What was found.
    pub(crate) found: String,
    /// Is it as promised?
    pub(crate) holds: bool,
}

/// Judges the transfers.
pub(crate) fn judge(evidence: &Evidence) -> Vec<Check> {
    vec![
        transfers(evidence),
        tokens(evidence),
        exclusion(evidence),
        balance(evidence),
    ]
}

fn transfers(evidence: &Evidence) -> Check {
    let Evidence {
        shares,
        terms,
        took,
        after,
        ..
    } = evidence;
    let wanted: u32 = shares.iter().sum();
    let made: usize = terms.iter().map(Vec::len).sum();
    let each = shares.len() == terms.len()
        && shares
            .iter()
            .zip(terms)
            .all(|(share, terms)| *share as usize == terms.len());
    Check {
        name: "transfers",
        found: format!(
            "{made} of {wanted}, {} in the ledger, by {} processes in {:.1} s",
            after.tokens.len(),
            terms.len(),
            took.as_secs_f64(),
        ),
        holds: each && after.tokens.len() == made,
    }
}

/// Every grant has a token of its own, the tokens of a key rise in the order in which its holders
/// came, and the database has each of them.
fn tokens(evidence: &Evidence) -> Check {
    let terms: Vec<_> = evidence.terms.iter().flatten().collect();
    let tokens: BTreeSet<_> = terms.iter().map(|term| term.token).collect();
    let falls = by_account(&evidence.terms)
        .values()
        .flat_map(|terms| terms.windows(2))
        .filter(|pair| pair[0].token >= pair[1].token)
        .count();
    let ledger: BTreeSet<_> = evidence.after.tokens.iter().copied().collect();
    let unfenced = &evidence.after.unfenced;
    let mut found = format!("{} different, {falls} out of order", tokens.len());
    if ledger != tokens {
        found += "; the ledger has others";
    }
    if let Some(account) = unfenced.first() {
        found += &format!("; the fence of {} is behind", key(*account));
    }
    let holds =
        tokens.len() == terms.len() && falls == 0 && ledger == tokens && unfenced.is_empty();
    Check {
        name: "tokens",
        found,
        holds,
    }
}

/// No two terms on one account overlap.
fn exclusion(evidence: &Evidence) -> Check {
    let accounts = by_account(&evidence.terms);
    let terms: usize = accounts.values().map(Vec::len).sum();
    let mut overlaps = 0;
    for terms in accounts.values() {
        let mut busy_until = Duration::ZERO;
        for term in terms {
            overlaps += usize::from(term.entered < busy_until);
            busy_until = busy_until.max(term.left);
        }
    }
    Check {
        name: "exclusion",
        found: format!(
            "{terms} terms on {} keys, {overlaps} overlap",
            accounts.len()
        ),
        holds: overlaps == 0 && terms > 0,
    }
}

fn balance(evidence: &Evidence) -> Check {
    let Evidence { before, after, .. } = evidence;
    Check {
        name: "balance",
        found: format!(
            "{} before, {} after; {}",
            before.total,
            after.total,
            accounts(after)
        ),
        holds: before.is_sound() && after.is_sound() && before.total == after.total,
    }
}

/// Judges a late write: without the fence it must do harm, or else the stage proves nothing; with
/// it, it must be refused and do none.
pub(crate) fn judge_late(late: &Late) -> Check {
    let Late {
        unfenced,
        token,
        since,
        lease,
        next,
        written,
        after,
    } = late;
    // S2: never early. The lease began at or after the request.
    let after_lease = next.entered.saturating_sub(*since) >= *lease;
    let later = next.token > *token;
    let mut found = match (after.total - after.opening, written) {
        (0, false) => "refused".to_owned(),
        (0, true) => "committed".to_owned(),
        (wrong, _) if wrong < 0 => format!("committed: {} are gone", -wrong),
        (wrong, _) => format!("committed: {wrong} out of nothing"),
    };
    found += &format!("; {}", accounts(after));
    if !after_lease {
        found += "; the next holder came before the lease had ended";
    }
    if !later {
        found += "; the next holder's token is not higher";
    }
    let (name, as_told) = if *unfenced {
        ("late write, no fence", *written && !after.is_sound())
    } else {
        ("late write, fenced", !*written && after.is_sound())
    };
    Check {
        name,
        found,
        holds: after_lease && later && as_told,
    }
}

fn accounts(audit: &Audit) -> String {
    let all = audit.balances.len();
    match audit.wrong.first() {
        None => format!("{all} of {all} accounts match the ledger"),
        Some((id, has, should)) => format!(
            "{} of {all} accounts match the ledger, {} has {has} instead of {should}",
            all - audit.wrong.len(),
            key(*id),
        ),
    }
}

/// The terms on each account, in the order in which they were entered.
fn by_account(terms: &[Vec<Term>]) -> BTreeMap<u32, Vec<&Term>> {
    let mut accounts = BTreeMap::<u32, Vec<&Term>>::new();
    for term in terms.iter().flatten() {
        for account in term.accounts {
            accounts.entry(account).or_default().push(term);
        }
    }
    for terms in accounts.values_mut() {
        terms.sort_by_key(|term| term.entered);
    }
    accounts
}

#[cfg(test)]
mod tests;
