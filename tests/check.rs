//! Holds that the steps of `./test` which run some tests only run any: a filter that matches no name passes, too.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the other tests that read sources need more of it")]
#[path = "language/source.rs"]
mod source;

use source::sources;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the names of the tests in a file or below a folder, with the modules of their files.
fn tests(at: &Path) -> Vec<String> {
    let files = if at.is_dir() { sources(at) } else { vec![at.to_owned()] };
    let mut found = Vec::new();
    for file in files {
        let inside = file.strip_prefix(at).unwrap().with_extension("");
        let modules: Vec<_> =
            inside.iter().map(|part| part.to_str().unwrap()).filter(|part| *part != "mod").collect();
        let text = fs::read_to_string(&file).unwrap();
        for after in text.split("#[test]").skip(1) {
            let name = after.split_once("fn ").map_or("", |(_, name)| name.split('(').next().unwrap());
            found.push(format!("{}::{name}", modules.join("::")));
        }
    }
    found
}

/// A command that runs tests: its packages, the test programs that it names, and its filters.
#[derive(Default)]
struct Command {
    packages: Vec<String>,
    programs: Vec<String>,
    filters: Vec<String>,
}

impl Command {
    fn read(words: &str) -> Self {
        const WITH_VALUE: [&str; 4] = ["--features", "--target-dir", "--target", "--message-format"];
        let mut command = Command::default();
        let mut words = words.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-p" => command.packages.extend(words.next().map(str::to_owned)),
                "--test" => command.programs.extend(words.next().map(str::to_owned)),
                _ if WITH_VALUE.contains(&word) => drop(words.next()),
                "|" | "|&" | ";" | ">" => break,
                _ if word.starts_with(['-', '"', '$']) => {}
                _ => command.filters.push(word.to_owned()),
            }
        }
        command
    }

    /// Reads a command that names a test program as `crate/program`, or the crate's own tests as `crate/lib`.
    fn read_built(words: &str) -> Option<Self> {
        let (program, filters) = words.split(';').next()?.split_once(' ')?;
        let (package, program) =
            program.split_once('/').filter(|(package, _)| !package.contains(['"', '$']))?;
        let programs = if program == "lib" { Vec::new() } else { vec![program.to_owned()] };
        Some(Command { packages: vec![package.to_owned()], programs, ..Command::read(filters) })
    }

    /// Returns the places of the tests that it runs: one for each program, or the library's.
    fn places(&self) -> Vec<PathBuf> {
        let folders =
            self.packages.iter().map(|package| root().join(package.trim_start_matches("hexagram-")));
        let program = |folder: &Path, name: &String| {
            let file = folder.join("tests").join(name).with_extension("rs");
            if file.exists() { file } else { folder.join("tests").join(name) }
        };
        folders
            .flat_map(|folder| match self.programs.is_empty() {
                true => vec![folder.join("src")],
                false => self.programs.iter().map(|name| program(&folder, name)).collect(),
            })
            .collect()
    }
}

/// Returns the commands of a script that run tests by filters.
fn filtered(script: &str) -> Vec<Command> {
    let script = script.replace("\\\n", " ");
    let commands = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let list = script.split_once("interpreted=(").map_or("", |(_, list)| list.split(')').next().unwrap());
    let read = |line: &str| {
        let by_cargo = line.split_once("cargo test ").or(line.split_once("miri test "));
        match by_cargo {
            Some((_, words)) => Some(Command::read(&words.replace("\"${interpreted[@]}\"", list))),
            None => Command::read_built(line.split_once("run_built ")?.1),
        }
    };
    commands.filter_map(read).filter(|command| !command.filters.is_empty()).collect()
}

/// Returns the filters that match no test, and the programs in which none matches.
fn idle(command: &Command) -> Vec<String> {
    let places: Vec<_> = command.places().into_iter().map(|place| (tests(&place), place)).collect();
    let matches = |filter: &String, tests: &[String]| tests.iter().any(|test| test.contains(filter.as_str()));
    let programs = places
        .iter()
        .filter(|(tests, _)| !command.filters.iter().any(|filter| matches(filter, tests)))
        .map(|(_, place)| place.display().to_string());
    let filters =
        command.filters.iter().filter(|filter| !places.iter().any(|(tests, _)| matches(filter, tests)));
    programs.chain(filters.cloned()).collect()
}

#[test]
fn every_filter_of_the_check_matches_a_test() {
    let commands = filtered(&fs::read_to_string(root().join("test")).unwrap());
    let count: usize = commands.iter().map(|command| command.filters.len()).sum();
    assert!(count >= 24, "{count} filters were found");
    let idle: Vec<_> = commands.iter().flat_map(idle).collect();
    assert!(idle.is_empty(), "no test is called so: {idle:?}");
}

#[test]
fn a_filter_that_matches_nothing_is_found() {
    let find = |line: &str| filtered(line).iter().flat_map(idle).collect::<Vec<_>>();
    assert_eq!(find("X=1 cargo test -q -p hexagram-physical --lib \\\n    --target-dir x loom"), [""; 0]);
    assert_eq!(
        find("cargo test -p hexagram-physical --lib lume"),
        [root().join("physical/src").to_str().unwrap(), "lume"]
    );
    assert_eq!(find("cargo test -p hexagram-logical --test pairs -- values_come values_go"), ["values_go"]);
    assert_eq!(
        find(
            "interpreted=(memory:: memoir::)\ncargo +nightly miri test -p hexagram-physical --lib -- \\\n \"${interpreted[@]}\""
        ),
        ["memoir::"]
    );
    assert_eq!(find("X=1 on_cuda run_built physical/lib tls lume"), ["lume"]);
    assert_eq!(find("run_built logical/pairs values_come values_go"), ["values_go"]);
}
