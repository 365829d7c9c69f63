//! Every clause of `docs/semantics.md` is covered by a test that is named after it.

use crate::File;
use std::collections::BTreeSet;

/// The clauses that `semantics` defines, lower-cased: `c13a`, `s4` …
pub fn defined(semantics: &str) -> BTreeSet<String> {
    semantics
        .lines()
        .filter_map(|line| line.strip_prefix("- "))
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(clause)
        .collect()
}

/// The clauses that the tests in `files` are named after: `c9_c10_a_name` covers C9 and C10.
pub fn tested(files: &[File]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let mut is_test = false;
        for line in file.text.lines().map(str::trim) {
            // Attributes stand above the function, `proptest!` puts them there too.
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some((before, rest)) = line.split_once("fn ") else {
                continue;
            };
            if !matches!(before, "" | "async ") {
                continue;
            }
            if std::mem::take(&mut is_test) {
                found.extend(rest.split('_').map_while(clause));
            }
        }
    }
    found
}

/// The clauses without a test.
pub fn untested(semantics: &str, files: &[File]) -> Vec<String> {
    defined(semantics)
        .difference(&tested(files))
        .cloned()
        .collect()
}

/// Clauses that some text names although `semantics` does not define them, as `file: clause`.
pub fn unknown(semantics: &str, files: &[File]) -> Vec<String> {
    let defined = defined(semantics);
    let mut offences = Vec::new();
    for file in files {
        let is_code = file.path.ends_with(".rs");
        for line in file.text.lines() {
            let prose = match line.find("//") {
                Some(start) if is_code => &line[start..],
                None if is_code => continue,
                _ => line,
            };
            let words = prose.split(|c: char| !c.is_ascii_alphanumeric());
            for word in words.filter(|word| word.starts_with(['C', 'S'])) {
                if clause(word).is_some_and(|clause| !defined.contains(&clause)) {
                    offences.push(format!("{}: {word}", file.path));
                }
            }
        }
    }
    offences
}

/// `C13a` or `c13a` as `c13a`; anything that is not a clause's number as `None`.
fn clause(word: &str) -> Option<String> {
    let digits = word.strip_prefix(['C', 'c', 'S', 's'])?;
    let number = digits.strip_suffix('a').unwrap_or(digits);
    let is_number = matches!(number.len(), 1 | 2) && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| word.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEMANTICS: &str = "Text C99.\n- C1 `wait`.\n- C13a *Ending*.\n- S4 A release.\n- SQL.\n";

    #[test]
    fn a_clause_counts_only_when_a_test_is_named_after_it() {
        let test = |text: &str| untested(SEMANTICS, &[File::new("a.rs", text)]);
        assert_eq!(test(""), ["c1", "c13a", "s4"]);
        assert_eq!(
            test("fn c1_not_a_test() {}\n// fn s4_in_a_comment()"),
            ["c1", "c13a", "s4"]
        );
        assert_eq!(
            test("#[test]\nfn c1_x() {}\nfn s4_helper() {}"),
            ["c13a", "s4"]
        );
        assert_eq!(test("#[test]\nfn other_c1() {}"), ["c1", "c13a", "s4"]);
        assert!(
            test("#[tokio::test(x)]\n#[ignore]\nasync fn c13a_s4_c1_x() {}").is_empty(),
            "a test may be named after several clauses"
        );
    }

    #[test]
    fn a_clause_that_is_not_defined_is_found() {
        let files = [
            File::new("a.rs", &["let x = C77; /", "/ C1, C31 and C13a\n"].concat()),
            File::new("b.md", "see S4 and S12; SQL, C, SHA, C100\n"),
        ];
        assert_eq!(unknown(SEMANTICS, &files), ["a.rs: C31", "b.md: S12"]);
    }
}
