//! The layer rule: imports point down only. Read from the manifests, which cargo obeys, and from the sources.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every package, and the packages of this workspace that it may depend on.
const LAYERS: [(&str, &str, &[&str]); 14] = [
    ("cuda/ptx", "hexagram-ptx", &[]),
    ("physical", "hexagram-physical", &["hexagram-ptx"]),
    ("physical/launch", "hexagram-launch", &["hexagram-physical"]),
    ("logical", "hexagram-logical", &["hexagram-physical", "hexagram-ptx"]),
    ("algorithms", "hexagram-algorithms", &["hexagram-logical", "hexagram-ptx"]),
    ("sampler", "hexagram-sampler", &[]),
    ("adapters/candle", "hexagram-candle", &["hexagram-algorithms"]),
    (
        ".",
        "hexagram",
        &[
            "hexagram-physical",
            "hexagram-logical",
            "hexagram-algorithms",
            "hexagram-sampler",
            "hexagram-launch",
        ],
    ),
    ("lab", "hexagram-lab", &["hexagram"]),
    ("cli", "hexagram-cli", &["hexagram", "hexagram-lab"]),
    ("python", "hexagram-python", &["hexagram", "hexagram-cli"]),
    ("examples/balance", "hexagram-balance", &["hexagram", "hexagram-lab"]),
    ("examples/own-algorithm", "hexagram-own-algorithm", &["hexagram", "hexagram-lab"]),
    ("examples/own-transport", "hexagram-own-transport", &["hexagram"]),
];

/// Folders of the transports that are built in.
const BACKENDS: [&str; 5] = ["thread", "shm", "tcp", "mixed", "mpi"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The Rust files below a folder of this repository, by their paths in it, with their texts.
fn sources(folder: &str) -> Vec<(String, String)> {
    fn add(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    add(&root, &mut found);
    assert!(!found.is_empty(), "{folder} has no sources");
    let inside = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    found.into_iter().map(|path| (inside(&path), fs::read_to_string(&path).unwrap())).collect()
}

/// The packages of this workspace that a manifest names below `[dependencies]`: what tests and examples depend on may be
/// above, as packages leave it out.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        }
        if inside {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
            found.extend(words.filter(|word| *word == "hexagram" || word.starts_with("hexagram-")));
        }
    }
    found
}

#[test]
fn manifests_depend_downwards_only() {
    for (folder, name, allowed) in LAYERS {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder} is {name}");
        let upward: Vec<_> = dependencies(&manifest).into_iter().filter(|d| !allowed.contains(d)).collect();
        assert!(upward.is_empty(), "{name} must not depend on {upward:?}");
    }
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find(|line| line.starts_with("members")).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        assert!(LAYERS.iter().any(|(folder, ..)| *folder == member), "{member} has no place in the layers");
    }
}

#[test]
fn the_files_from_a_gradient_to_the_socket_exist() {
    let page = read("docs/architecture.md");
    let way = page.split("To follow one gradient to the socket").nth(1).unwrap();
    let items = way.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit() || c == '-'));
    let files: Vec<_> = items.map(|line| line.split('`').nth(1).unwrap()).collect();
    assert!(files.len() >= 19, "{files:?}");
    for file in files {
        assert!(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(file).is_file(),
            "docs/architecture.md names {file}"
        );
    }
}

/// Algorithms reach devices and transports only through the logical layer's own words.
#[test]
fn algorithm_files_name_no_transport_and_no_device() {
    for (file, text) in sources("algorithms/src").into_iter().filter(|(file, _)| !file.contains('/')) {
        // The example on the crate's front page starts ranks, and names the transport between them.
        let code: String = text.lines().filter(|line| file != "lib.rs" || !line.starts_with("//!")).collect();
        for word in ["physical", "Transport", "Host", "TcpStream", "shm"] {
            assert!(!code.contains(word), "{file} names {word}");
        }
    }
}

/// Logical primitives are written against the transport trait, never against one transport.
#[test]
fn primitives_know_no_backend() {
    for (file, text) in sources("logical/src") {
        for word in BACKENDS.map(|backend| format!("physical::{backend}::")) {
            assert!(!text.contains(&word), "{file} names {word}");
        }
        assert!(
            !text.contains("std::net") && !text.contains("TransportKind::Tcp"),
            "{file} names a transport"
        );
    }
}

/// Backends do not know each other, and what they stand on does not know them. The mixed one is made of two others.
#[test]
fn backends_do_not_know_each_other() {
    for (file, text) in sources("physical/src") {
        let home = file.split('/').next().unwrap();
        // The table of the built-in transports, and the world of threads, which has no rendezvous.
        if ["backends.rs", "world.rs"].contains(&file.as_str()) {
            continue;
        }
        for backend in BACKENDS.into_iter().filter(|backend| *backend != home) {
            let is_part = home == "mixed" && ["shm", "tcp"].contains(&backend);
            assert!(is_part || !text.contains(&format!("crate::{backend}::")), "{file} imports {backend}");
        }
    }
}
