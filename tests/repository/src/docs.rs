//! The pages: what they name exists.

use crate::File;

/// Links and file names in Markdown that lead nowhere, as `page: target`.
pub fn dead_links(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for page in files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = page.path.strip_suffix(page.name()).unwrap_or_default();
        let exists = |target: &str| {
            let near = normal(&format!("{folder}{target}"));
            let far = normal(target);
            files.iter().any(|file| {
                [&near, &far]
                    .into_iter()
                    .any(|path| file.path == *path || file.path.starts_with(&format!("{path}/")))
            })
        };
        let linked = page
            .text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for target in linked {
            let target = target.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !exists(target) {
                offences.push(format!("{}: {target}", page.path));
            }
        }
        for name in page.text.split('`').skip(1).step_by(2) {
            let is_file = [".md", ".json", ".rs"]
                .iter()
                .any(|end| name.ends_with(end));
            if is_file && !name.contains([' ', '*', '<']) && !exists(name) {
                offences.push(format!("{}: {name}", page.path));
            }
        }
    }
    offences
}

/// Words that `page` should have and has not.
pub fn missing<'a>(page: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    words
        .into_iter()
        .filter(|word| !page.contains(&format!("`{word}")))
        .collect()
}

/// The kinds of error that `semantics` lists.
pub fn error_kinds(semantics: &str) -> Vec<&str> {
    let Some(list) = semantics.split("**Errors**").nth(1) else {
        return Vec::new();
    };
    let list = list.split('`').nth(1).unwrap_or_default();
    list.split_whitespace().collect()
}

fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_file_that_is_not_there_is_found() {
        let files = [
            File::new(
                "README.md",
                "[a](docs/a.md) [b](docs/b.md#x) [web](https://x.y/z.md) `c.md`",
            ),
            File::new(
                "docs/a.md",
                "[up](../README.md) `tests/v.json` `a.md` `../scripts/test` [s](../scripts)",
            ),
            File::new("scripts/test", ""),
        ];
        let expected = [
            "README.md: docs/b.md",
            "README.md: c.md",
            "docs/a.md: tests/v.json",
        ];
        assert_eq!(dead_links(&files), expected);
    }

    #[test]
    fn a_kind_of_error_that_a_page_leaves_out_is_found() {
        let kinds =
            error_kinds("x `A`\n**Errors** (one list): `Timeout Busy\nAuth` (`Internal` is…)");
        assert_eq!(kinds, ["Timeout", "Busy", "Auth"]);
        assert_eq!(missing("| `Timeout` | `Busy{x}` | Auth |", kinds), ["Auth"]);
    }
}
