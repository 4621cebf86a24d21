//! Holds the line of the language: how documentation begins, how names, functions and files are cut. Run it to see
//! where each crate stands; `LANGUAGE=physical/src/health` lists the offenders below that path:
//!
//! ```text
//! LANGUAGE=sampler/ cargo test --test language -- --nocapture
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod measure;
#[allow(dead_code, reason = "the other tests that read sources need more of it")]
mod source;

use measure::{Measure, Share};
use source::{Source, test_modules};
use std::fs;
use std::path::{Path, PathBuf};

/// What is held in each crate, in percent at most: public functions whose documentation begins with no verb, all such
/// functions, and first lines that are clauses. Verbs that are not in the list yet have some room, and nothing else.
const HELD: Percent = [6.0, 6.0, 0.0];

type Percent = [f64; 3];

/// What is held over all crates: functions that are documented as things, names of more than two types in a crate,
/// files of more than 500 lines, functions of more than 40, lines of the median function, statements that give several
/// values at once.
const HELD_IN_ALL: [usize; 6] = [0, 0, 0, 2, 6, 0];

fn root() -> &'static Path {
    Path::new(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."))
}

/// The folders of the crates, by the manifest of the workspace.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find(|line| line.starts_with("members")).unwrap();
    let members = members.split('"').skip(1).step_by(2).map(str::to_owned);
    std::iter::once(".".to_owned()).chain(members).collect()
}

/// Every Rust file below `folder`, without those of other crates and of what was built.
fn files(folder: &Path) -> Vec<PathBuf> {
    source::sources_in(folder, &|entry| {
        let name = entry.file_name().unwrap().to_str().unwrap();
        !entry.join("Cargo.toml").exists() && name != "target" && !name.starts_with('.')
    })
}

/// Counts in one crate.
fn measure(folder: &str) -> Measure {
    let mut measure = Measure::default();
    let texts: Vec<_> = files(&root().join(folder))
        .into_iter()
        .map(|file| (fs::read_to_string(&file).unwrap(), file))
        .collect();
    let tests: Vec<PathBuf> = texts.iter().flat_map(|(text, file)| test_modules(text, file)).collect();
    for (text, file) in &texts {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap();
        measure.add_form(&Source::whole(path, text));
        let is_test = path.contains("tests/")
            || tests.iter().any(|test| file == test || file.starts_with(test.with_extension("")));
        if is_test {
            continue;
        }
        let source = Source::new(path, text);
        if path.starts_with("src/") || path.contains("/src/") {
            measure.add_types(&source);
            measure.add(&source);
        } else if path.starts_with("examples/") {
            // Each is a crate of its own.
            measure.add(&source);
        }
    }
    measure
}

/// Whether the front page of a crate that is published has an example that is run.
fn has_example(folder: &str) -> bool {
    let read = |file: &str| fs::read_to_string(root().join(folder).join(file)).unwrap_or_default();
    let page = read("src/lib.rs");
    if page.is_empty() || read("Cargo.toml").contains("publish = false") {
        return true;
    }
    let fences = page.lines().filter_map(|line| line.strip_prefix("//! ```"));
    // Every other one closes what the one before it has opened.
    fences.step_by(2).any(|kind| ["", "rust"].contains(&kind.trim()))
}

fn print(name: &str, measure: &Measure) {
    let good = |share: &Share| 100.0 - share.percent();
    println!(
        "{name:<24} {:>6.1} % of {:>4} {:>6.1} % of {:>4} {:>6.1} % of {:>4} {:>5} {:>5} {:>4} {:>7} {:>5}",
        good(&measure.public_functions),
        measure.public_functions.all,
        good(&measure.functions),
        measure.functions.all,
        measure.first_lines.percent(),
        measure.first_lines.all,
        measure.recurring().len(),
        measure.long_files.len(),
        measure.median(),
        measure.long_functions.len(),
        measure.tuples.len(),
    );
}

/// Prints where offenders are, below a path.
fn list(measure: &Measure, below: &str) {
    let kinds = [
        ("begins with no verb", &measure.functions.offenders),
        ("documented as a thing", &measure.things),
        ("begins with a clause", &measure.first_lines.offenders),
        ("a name of more than two types", &measure.recurring()),
        ("a long file", &measure.long_files),
        ("a long function", &measure.long_functions),
        ("several in one statement", &measure.tuples),
    ];
    for (kind, offenders) in kinds {
        for offender in offenders.iter().filter(|offender| offender.contains(below)) {
            println!("{kind}: {offender}");
        }
    }
}

#[test]
fn documentation_names_and_functions_keep_to_the_line() {
    println!(
        "{:<24} {:>16} {:>16} {:>16} {:>5} {:>5} {:>4} {:>7} {:>5}",
        "", "verb, public", "verb, all", "clauses", "names", "files", "med.", "longer", "tuples"
    );
    let below = std::env::var("LANGUAGE").ok();
    let mut all = Measure::default();
    let mut over = Vec::new();
    let mut recurring = 0;
    for folder in crates() {
        let measure = measure(&folder);
        print(&folder, &measure);
        if let Some(below) = &below {
            list(&measure, below);
        }
        recurring += measure.recurring().len();
        over.extend(beyond(&folder, &measure));
        all.merge(measure);
    }
    print("all", &all);
    let totals = [
        ("functions that are documented as things", all.things.len()),
        ("names of more than two types", recurring),
        ("files of more than 500 lines", all.long_files.len()),
        ("functions of more than 40 lines", all.long_functions.len()),
        ("lines in the median function", all.median()),
        ("statements that give several values", all.tuples.len()),
    ];
    let more = totals.into_iter().zip(HELD_IN_ALL).filter(|((_, found), most)| found > most);
    over.extend(more.map(|((what, found), most)| format!("{found} {what} instead of {most}")));
    assert!(over.is_empty(), "{over:#?}\nLANGUAGE=PATH lists them below PATH");
}

/// In what a crate is beyond the line.
fn beyond(folder: &str, measure: &Measure) -> Vec<String> {
    let [public, functions, clauses] = HELD;
    let shares = [
        ("public functions whose documentation begins with no verb", &measure.public_functions, public),
        ("functions whose documentation begins with no verb", &measure.functions, functions),
        ("first lines that are clauses", &measure.first_lines, clauses),
    ];
    let more = shares.into_iter().filter(|(_, share, most)| share.percent() > *most);
    let line = |(what, share, most): (&str, &Share, f64)| {
        format!("{folder}: {:.1} % {what} instead of {most} %", share.percent())
    };
    let mut over: Vec<String> = more.map(line).collect();
    if !has_example(folder) {
        over.push(format!("{folder}: no example on the front page that is run"));
    }
    over
}

/// What the counting finds in a file in which everything is wrong, and in one in which nothing is.
#[test]
fn offenders_are_found_and_others_are_not() {
    let wrong = r#"
//! How it fails.
/// Samples of a batch.
pub fn samples() {}
/// Of a type.
#[must_use]
pub(crate) fn of<T: Fn(u8)>(x: [u8; 4]) -> u8 where T: Copy { let (a, b) = (1, "{"); a }
/// Bytes.
pub trait Count {
    /// The number.
    fn number(&self) -> usize;
    type Word;
}
struct Word; struct Other { word: u8 } mod inner { enum Word { } fn f() { struct Word(u8); [p, q] = [q, p]; } }
#[cfg(test)]
mod tests { struct Word; /** no */ fn g() { let (a, b) = (1, 2); } }
"#;
    let count = |text: &str| {
        let mut measure = Measure::default();
        let source = Source::new("x.rs", text);
        measure.add(&source);
        measure.add_types(&source);
        measure.add_form(&source);
        measure
    };
    let found = count(wrong);
    assert_eq!(found.functions.offenders.len(), 3, "{:?}", found.functions.offenders);
    assert_eq!((found.public_functions.all, found.public_functions.offenders.len()), (2, 2));
    assert_eq!(found.first_lines.offenders, ["x.rs:2: How it fails.", "x.rs:5: Of a type."]);
    assert_eq!(found.recurring(), ["Word ×3: x.rs:14, x.rs:14, x.rs:14"]);
    assert_eq!(found.things, ["x.rs:10: The number."]);
    assert_eq!(found.tuples.len(), 2);
    for text in ["let (a, b): (u8, u8) = (1, 2);", "let [mut a, b] =\n[1, 2];", "(a, b) = (b, a)"] {
        assert_eq!(count(&format!("fn f() {{ {text} }}")).tuples.len(), 1, "{text}");
    }
    assert_eq!(found.lengths, [1, 1, 1]);
    let right = "//! Reads.\n/// Samples the batch.\npub fn f() { if let (Some(a), b) = (x, y) {} let (c, d) = g(1, 2); }\n\
                 /// Returns `x`.\npub const fn x<'a>(c: char) -> bool { c == '{' }\n/// Length.\nconst N: usize =
                 /// 2;\n";
    let found = count(right);
    assert_eq!((found.functions.all, found.public_functions.all, found.first_lines.all), (2, 2, 4));
    assert!(
        found.functions.offenders.is_empty() && found.tuples.is_empty(),
        "{:?}",
        found.functions.offenders
    );
    let long = format!("fn long() {{{}}}", "\n".repeat(40));
    assert_eq!(count(&long).long_functions.len(), 1);
    assert_eq!(count(&"\n".repeat(501)).long_files.len(), 1);
}
