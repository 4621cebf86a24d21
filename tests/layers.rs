//! The layer rule: imports point down only. Read from the manifests, which are what cargo obeys, and from the folders.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the other tests that read sources need more of it")]
#[path = "language/paths.rs"]
mod paths;
#[allow(dead_code, reason = "the other tests that read sources need more of it")]
#[path = "language/source.rs"]
mod source;

use paths::Named;
use source::{Source, sources, test_modules};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every package, and the packages of this workspace that it may depend on.
const LAYERS: [(&str, &str, &[&str]); 13] = [
    ("cuda/ptx", "hexagram-ptx", &[]),
    ("physical", "hexagram-physical", &["hexagram-ptx"]),
    ("logical", "hexagram-logical", &["hexagram-physical", "hexagram-ptx"]),
    ("algorithms", "hexagram-algorithms", &["hexagram-logical", "hexagram-ptx"]),
    ("sampler", "hexagram-sampler", &[]),
    // Its examples and tests train with the laboratory.
    ("adapters/candle", "hexagram-candle", &["hexagram-algorithms", "hexagram", "hexagram-lab"]),
    (".", "hexagram", &["hexagram-physical", "hexagram-logical", "hexagram-algorithms", "hexagram-sampler"]),
    ("lab", "hexagram-lab", &["hexagram"]),
    ("cli", "hexagram-cli", &["hexagram", "hexagram-lab"]),
    ("python", "hexagram-python", &["hexagram", "hexagram-cli"]),
    ("examples/balance", "hexagram-balance", &["hexagram", "hexagram-lab"]),
    ("examples/own-algorithm", "hexagram-own-algorithm", &["hexagram", "hexagram-lab"]),
    ("examples/own-transport", "hexagram-own-transport", &["hexagram"]),
];

/// A package whose examples in the documentation name things as users do, by a package above it: nothing else of it
/// may, which the test of names holds.
const EXAMPLES: (&str, &str) = ("hexagram-algorithms", "hexagram");

/// Folders of the transports that are built in.
const BACKENDS: [&str; 5] = ["thread", "shm", "tcp", "mixed", "mpi"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The packages of this workspace that a manifest names below any `[…dependencies]`.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.contains("dependencies") && !line.starts_with("[workspace");
        }
        // As a key, in a section's name, or as the package behind another name.
        if inside || line.contains("dependencies.") {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
            let ours = words.filter(|word| *word == "hexagram" || word.starts_with("hexagram-"));
            found.extend(ours);
        }
    }
    found
}

/// Returns what a file names, tests and all.
fn named_in(file: &Path) -> Vec<Named> {
    paths::named(&Source::whole("", &fs::read_to_string(file).unwrap()))
}

/// Returns true if a path has these names beside each other.
fn passes(path: &[String], names: &[&str]) -> bool {
    path.windows(names.len()).any(|part| part == names)
}

/// What the README begins with fits on a screen.
#[test]
fn the_first_examples_are_small() {
    for file in sources(&root().join("examples/first")) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 40, "{} has {lines} lines", file.display());
    }
}

/// Most files that a newcomer reads from a gradient to the system call that sends it.
const WAY: usize = 12;

#[test]
fn the_readme_names_the_files_from_a_gradient_to_the_socket() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let way =
        readme.split("To follow one gradient to the socket").nth(1).unwrap().split("\n## ").next().unwrap();
    let files = |item: fn(&str) -> bool| -> Vec<&str> {
        way.lines().filter(|line| item(line)).map(|line| line.split('`').nth(1).unwrap()).collect()
    };
    let in_full = files(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let in_low = files(|line| line.starts_with("- "));
    assert!((8..=WAY).contains(&in_full.len()), "{in_full:?}");
    assert!(!in_low.is_empty());
    for file in in_full.iter().chain(&in_low) {
        assert!(root().join(file).is_file(), "README names {file}");
    }
}

#[test]
fn manifests_depend_downwards_only() {
    for (folder, name, allowed) in LAYERS {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder} is {name}");
        let for_examples = |dependency: &&str| (name, *dependency) == EXAMPLES;
        let upward = dependencies(&manifest).into_iter().filter(|d| !allowed.contains(d));
        let upward: Vec<_> = upward.filter(|dependency| !for_examples(dependency)).collect();
        assert!(upward.is_empty(), "{name} must not depend on {upward:?}");
    }
    // By another name, a package of the workspace would be on nobody's list.
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(!manifest.contains("package = \"hexagram"), "a package has another name in the workspace");
}

#[test]
fn only_examples_in_the_documentation_name_what_is_above() {
    let (_, above) = EXAMPLES;
    for file in sources(&root().join("algorithms")) {
        let upward =
            named_in(&file).into_iter().find(|named| named.path.first().is_some_and(|name| name == above));
        assert_eq!(upward, None, "{} imports {above}", file.display());
    }
}

#[test]
fn every_package_is_in_the_table() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find(|line| line.starts_with("members")).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        assert!(LAYERS.iter().any(|(folder, ..)| *folder == member), "{member} has no place in the layers");
    }
}

/// Most lines of code that half of the algorithms' files may have.
const USUAL: usize = 80;

#[test]
fn most_algorithm_files_are_a_page() {
    let src = root().join("algorithms/src");
    let registry = fs::read_to_string(src.join("registry.rs")).unwrap();
    let modules = registry.lines().filter_map(|line| line.strip_prefix("use crate::")?.split_once("::"));
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for (module, _) in modules.filter(|(module, _)| *module != "plugin") {
        let file = [format!("{module}.rs"), format!("{module}/mod.rs")].map(|name| src.join(name));
        let file = file.into_iter().find(|file| file.is_file()).unwrap();
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap().lines().map(str::trim);
        lines.push((code.filter(|line| !line.is_empty() && !line.starts_with("//")).count(), module));
    }
    lines.sort_unstable();
    assert!(lines.len() > 30, "{lines:?}");
    let (median, _) = lines[lines.len() / 2];
    assert!(median <= USUAL, "half of them have more than {median} lines of code: {lines:?}");
}

/// Algorithms reach devices and transports only through the logical layer's own words.
#[test]
fn algorithm_files_name_no_transport_and_no_device() {
    let folder = fs::read_dir(root().join("algorithms/src")).unwrap();
    let own = root().join("examples/own-algorithm/src/lib.rs");
    for file in folder.map(|entry| entry.unwrap().path()).chain([own]) {
        let text = if file.is_file() { fs::read_to_string(&file).unwrap() } else { continue };
        // The example on the crate's front page starts ranks, and so names what carries their messages.
        let text = if file.ends_with("lib.rs") { without_front_page(&text) } else { text };
        for word in ["physical", "Transport", "Host", "TcpStream", "shm"] {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
    }
}

fn without_front_page(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("//!")).collect::<Vec<_>>().join("\n")
}

/// Which top-level modules of `algorithms` each of them imports, its tests aside.
fn imports_between_modules(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let texts: Vec<_> =
        sources(folder).into_iter().map(|file| (fs::read_to_string(&file).unwrap(), file)).collect();
    let tests: Vec<PathBuf> = texts.iter().flat_map(|(text, file)| test_modules(text, file)).collect();
    let mut imports = BTreeMap::new();
    for (text, file) in &texts {
        let is_test = tests.iter().any(|test| file == test || file.starts_with(test.with_extension("")));
        let inside = file.strip_prefix(folder).unwrap().to_str().unwrap();
        if !is_test {
            add_imports(&mut imports, inside, text);
        }
    }
    imports
}

/// Adds the top-level modules that a source `inside` the crate names to those of its own module.
fn add_imports(imports: &mut BTreeMap<String, BTreeSet<String>>, inside: &str, text: &str) {
    let home = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let named = paths::named(&Source::new(inside, text));
    for path in named.iter().filter_map(|named| paths::within_crate(&named.path, inside)) {
        let module = path.first().filter(|module| *module != home && home != "lib");
        imports.entry(home.to_owned()).or_default().extend(module.cloned());
    }
}

/// A circle of imports that can be reached from `from`, if there is one.
fn circle(
    imports: &BTreeMap<String, BTreeSet<String>>,
    from: &str,
    path: &mut Vec<String>,
) -> Option<Vec<String>> {
    if let Some(start) = path.iter().position(|module| module == from) {
        return Some(path[start..].to_vec());
    }
    path.push(from.to_owned());
    let found = imports.get(from).into_iter().flatten().find_map(|next| circle(imports, next, path));
    path.pop();
    found
}

#[test]
fn modules_of_algorithms_import_each_other_one_way_only() {
    let imports = imports_between_modules(&root().join("algorithms/src"));
    assert!(imports["checkpoint"].contains("engine") && imports["checkpoint"].contains("record"));
    for module in imports.keys() {
        assert_eq!(circle(&imports, module, &mut Vec::new()), None, "modules import each other");
    }
}

#[test]
fn circles_are_found_however_they_are_written() {
    let back = [
        "use crate::checkpoint::Saved;",
        "use crate::{checkpoint::{self as saves}, trace};",
        "use super::super::checkpoint as saves;",
        "fn f() { crate::checkpoint::save(); }",
        "use super::{super::checkpoint::Saved, step};",
        "use crate as root; fn f() { root::checkpoint::save(); }",
    ];
    for text in back {
        let mut imports = BTreeMap::new();
        add_imports(&mut imports, "checkpoint/save.rs", "use crate::engine::Engine;");
        add_imports(
            &mut imports,
            "engine/mod.rs",
            "mod hooks; #[cfg(test)] mod tests { use crate::checkpoint; }",
        );
        assert_eq!(circle(&imports, "engine", &mut Vec::new()), None);
        add_imports(&mut imports, "engine/hooks.rs", text);
        assert!(circle(&imports, "engine", &mut Vec::new()).is_some(), "{text}");
    }
}

/// Each layer is reached by its own name or by the names that the layer above gives: whoever reaches through a layer
/// into the one below it depends on both without saying so.
#[test]
fn nobody_tunnels_through_a_layer() {
    const ABOVE: [&str; 6] = ["algorithms", "adapters", "cli", "lab", "python", "examples"];
    for file in ABOVE.iter().flat_map(|folder| sources(&root().join(folder))) {
        let tunnel = named_in(&file).into_iter().find(is_tunnel);
        assert_eq!(tunnel, None, "{} reaches through logical", file.display());
    }
    for layer in ["logical", "algorithms", "sampler", "adapters/candle"] {
        for file in sources(&root().join(layer).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            assert!(!opens(&text), "{} lets others through to physical", file.display());
        }
    }
}

fn is_tunnel(named: &Named) -> bool {
    passes(&named.path, &["logical", "physical"])
        || passes(&named.path, &["hexagram_logical", "physical"])
        || passes(&named.path, &["hexagram_logical", "hexagram_physical"])
}

/// Returns true if a source hands out all of physical, and not single names of it.
fn opens(text: &str) -> bool {
    const ALL: [&str; 3] = ["hexagram_physical", "hexagram_physical::*", "hexagram_physical::self"];
    let code = Source::whole("", text).code;
    let handed_out = code.split("pub use ").skip(1).map(|rest| rest.split(';').next().unwrap_or_default());
    let hands_out = handed_out
        .flat_map(|tree| paths::named(&Source::whole("", &format!("use {tree};"))))
        .any(|named| ALL.contains(&named.text().as_str()));
    hands_out || code.contains("pub extern crate hexagram_physical")
}

#[test]
fn tunnels_are_found_however_they_are_written() {
    let tunnels = [
        "use hexagram_logical::physical::Error;",
        "use hexagram_logical::{Communicator, physical::{Error, Result}};",
        "use hexagram::logical::{self as primitives}; fn f() { primitives::physical::now(); }",
        "fn f() { hexagram_logical\n    ::physical::now(); }",
        "use hexagram::{logical as l}; use l::physical;",
    ];
    for text in tunnels {
        assert!(paths::named(&Source::whole("", text)).iter().any(is_tunnel), "{text}");
    }
    let open = [
        "pub use hexagram_physical as physical;",
        "pub use hexagram_physical::*;",
        "pub use hexagram_physical;",
        "pub use hexagram_physical::{self as physical};",
        "pub use {hexagram_physical as below, std::fmt};",
        "pub mod physical { pub use hexagram_physical::*; }",
        "pub extern crate hexagram_physical;",
    ];
    for text in open {
        assert!(opens(text), "{text}");
    }
    assert!(!opens("pub use hexagram_physical::{Error, runtime};\nuse hexagram_physical as physical;"));
}

/// Logical primitives are written against the transport trait, never against one transport.
#[test]
fn primitives_know_no_backend() {
    for file in sources(&root().join("logical/src")) {
        let text = fs::read_to_string(&file).unwrap();
        for word in ["physical::tcp", "physical::shm", "physical::thread", "TransportKind::Tcp", "std::net"] {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
        let named = named_in(&file);
        for backend in BACKENDS {
            let backend = |named: &&Named| passes(&named.path, &["hexagram_physical", backend]);
            assert_eq!(named.iter().find(backend), None, "{} names a backend", file.display());
        }
    }
}

/// Within the physical layer, backends do not know each other, and what they stand on does not know them. The mixed one
/// is made of two others.
#[test]
fn backends_know_neither_each_other_nor_the_layers_above() {
    let folder = root().join("physical/src");
    for file in sources(&folder) {
        let named = named_in(&file);
        let inside = file.strip_prefix(&folder).unwrap();
        let home = inside.components().next().unwrap().as_os_str().to_str().unwrap().to_owned();
        // The table of the built-in transports, and the world of threads, which nobody joins.
        if home == "backends.rs" || inside == Path::new("world.rs") {
            continue;
        }
        for backend in BACKENDS.into_iter().filter(|backend| *backend != home) {
            if home == "mixed" && ["shm", "tcp"].contains(&backend) {
                continue;
            }
            let is_of = |named: &&Named| {
                let path = paths::within_crate(&named.path, inside.to_str().unwrap());
                path.is_some_and(|path| path.first().is_some_and(|first| first == backend))
            };
            assert_eq!(named.iter().find(is_of), None, "{} imports {backend}", inside.display());
        }
    }
}

/// So that they diff cleanly; a backend may have more, for what only it can do.
#[test]
fn backends_have_the_same_files() {
    let names = |backend: &str| -> BTreeSet<String> {
        let folder = fs::read_dir(root().join("physical/src").join(backend)).unwrap();
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for backend in ["shm", "tcp", "mixed", "mpi"] {
        assert!(names(backend).is_superset(&names("thread")), "{backend}");
    }
}

#[test]
fn the_reader_of_manifests_sees_what_it_should() {
    let manifest = "[package]\nname = \"x\"\nhexagram = 1\n[dependencies]\nhexagram-logical.workspace = true\n\
                    [dev-dependencies]\nhexagram-candle = { path = \"y\" }\n[lints]\nhexagram-cli = 1\n\
                    [dependencies.hexagram-sampler]\npath = \"z\"\n[build-dependencies]\n\
                    other = { package = \"hexagram-physical\" }\n";
    let expected = ["hexagram-logical", "hexagram-candle", "hexagram-sampler", "hexagram-physical"];
    assert_eq!(dependencies(manifest), BTreeSet::from(expected));
}
