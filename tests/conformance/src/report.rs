//! What the suite found: a table, JUnit's XML, and which clause is covered by what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::scenario::Scenario;
use crate::suite::Verdict;

/// Verdicts by scenario for each column, which is a language and a face.
pub type Results = Vec<(String, BTreeMap<String, Verdict>)>;

/// The table, a reason under each failure, and the last line. `names` are its rows.
#[must_use]
pub fn table(names: &[String], results: &Results) -> String {
    let widest = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut out = format!("{:widest$}", "");
    for (column, _) in results {
        let _ = write!(out, "  {column}");
    }
    out.push('\n');
    let (mut passed, mut failed) = (0, 0);
    for name in names {
        let mut reasons = String::new();
        let mut row = format!("{name:widest$}");
        for (column, verdicts) in results {
            let (mark, reason) = match verdicts.get(name) {
                Some(Verdict::Passed) => {
                    passed += 1;
                    ("ok", None)
                }
                Some(Verdict::Failed(why)) => {
                    failed += 1;
                    ("FAILED", Some(why))
                }
                Some(Verdict::Known(why)) => ("known", Some(why)),
                Some(Verdict::NotApplicable(_)) => ("n/a", None),
                None => ("-", None),
            };
            let _ = write!(row, "  {mark:width$}", width = column.len());
            if let Some(why) = reason {
                let _ = writeln!(reasons, "    {column}: {why}");
            }
        }
        out.push_str(row.trim_end());
        out.push('\n');
        out.push_str(&reasons);
    }
    let _ = writeln!(out, "{passed} passed, {failed} failed");
    out
}

/// Whether nothing failed.
#[must_use]
pub fn is_green(results: &Results) -> bool {
    let verdicts = results.iter().flat_map(|(_, verdicts)| verdicts.values());
    !verdicts
        .into_iter()
        .any(|v| matches!(v, Verdict::Failed(_)))
}

/// JUnit's XML: a suite for each column.
#[must_use]
pub fn junit(results: &Results) -> String {
    let escaped = |text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        text.replace('"', "&quot;")
    };
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (column, verdicts) in results {
        let _ = writeln!(
            out,
            "  <testsuite name=\"{column}\" tests=\"{}\">",
            verdicts.len()
        );
        for (name, verdict) in verdicts {
            let inner = match verdict {
                Verdict::Passed => String::new(),
                Verdict::Failed(why) => format!("<failure message=\"{}\"/>", escaped(why)),
                Verdict::Known(why) | Verdict::NotApplicable(why) => {
                    format!("<skipped message=\"{}\"/>", escaped(why))
                }
            };
            let name = escaped(name);
            let _ = writeln!(out, "    <testcase name=\"{name}\">{inner}</testcase>");
        }
        out.push_str("  </testsuite>\n");
    }
    out + "</testsuites>\n"
}

/// A line for each clause with the scenarios that cover it, and the clauses without one.
#[must_use]
pub fn coverage(scenarios: &[Scenario]) -> (String, Vec<String>) {
    let clauses = (1..=30).map(|n| format!("C{n}"));
    let mut all: Vec<String> = clauses.collect();
    all.insert(13, "C13a".into());
    let mut covered: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for scenario in scenarios {
        for clause in &scenario.clauses {
            covered.entry(clause).or_default().insert(&scenario.name);
        }
    }
    let (mut out, mut gaps) = (String::new(), Vec::new());
    for clause in all {
        let by = covered.get(clause.as_str()).cloned().unwrap_or_default();
        let _ = writeln!(out, "{clause}: {} scenarios", by.len());
        for name in &by {
            let _ = writeln!(out, "    {name}");
        }
        if by.is_empty() {
            gaps.push(clause);
        }
    }
    (out, gaps)
}
