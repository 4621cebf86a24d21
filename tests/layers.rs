//! The layer rule: imports point down only, and circles of them within a crate do not grow. Read from the manifests, which
//! cargo obeys, and from the sources.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every package, and the packages of this workspace that it may depend on.
const LAYERS: [(&str, &str, &[&str]); 15] = [
    ("physical/cuda/ptx", "hexagram-ptx", &[]),
    ("physical/nccl-rs", "nccl-rs", &[]),
    ("physical", "hexagram-physical", &["hexagram-ptx", "nccl-rs"]),
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
    ("examples/own-algorithm", "hexagram-own-algorithm", &["hexagram", "hexagram-lab"]),
    ("examples/own-codec", "hexagram-own-codec", &["hexagram"]),
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

/// The packages of this workspace in a manifest's `[dependencies]`. Dependencies of tests and examples may be in
/// higher layers, since packages leave them out.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        }
        if inside {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
            found.extend(
                words.filter(|word| {
                    *word == "hexagram" || word.starts_with("hexagram-") || *word == "nccl-rs"
                }),
            );
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

/// Algorithms use devices and transports only through the names of the logical layer.
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
        for word in BACKENDS.map(|backend| format!("physical::backends::{backend}::")) {
            assert!(!text.contains(&word), "{file} names {word}");
        }
        assert!(
            !text.contains("std::net") && !text.contains("TransportKind::Tcp"),
            "{file} names a transport"
        );
    }
}

/// Backends do not depend on each other, and the layers below do not depend on backends. The mixed one consists of
/// two others.
#[test]
fn backends_do_not_know_each_other() {
    for (file, text) in sources("physical/src") {
        let home = file.trim_start_matches("backends/").split('/').next().unwrap();
        // The table of the built-in transports, and the world of threads, which has no rendezvous.
        if ["backends/mod.rs", "world/mod.rs"].contains(&file.as_str()) {
            continue;
        }
        for backend in BACKENDS.into_iter().filter(|backend| *backend != home) {
            let is_part = home == "mixed" && ["shm", "tcp"].contains(&backend);
            assert!(is_part || !text.contains(&format!("backends::{backend}::")), "{file} imports {backend}");
        }
    }
}

/// Files of the largest circle of imports within each crate today; the other crates have none. To read one file of a
/// circle is to read them all: make none larger.
const LARGEST_CIRCLES: [(&str, usize); 8] = [
    ("physical", 5),
    ("logical", 4),
    ("algorithms", 3),
    ("sampler", 2),
    ("adapters/candle", 4),
    ("lab", 5),
    ("cli", 2),
    ("python", 3),
];

/// Adds the paths of a `use` tree.
fn expand(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let Some((start, inner)) = tree.split_once('{') else {
        return found.push(format!("{prefix}{}", tree.split(" as ").next().unwrap().trim()));
    };
    let mut depth = 0;
    let parts = inner[..inner.rfind('}').unwrap_or(inner.len())].split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts
        .filter(|part| !part.trim().is_empty())
        .for_each(|part| expand(&format!("{prefix}{}", start.trim()), part, found));
}

/// Returns the paths that a file names outside of its tests, and those that it exports under their last words.
fn paths(text: &str) -> [Vec<String>; 2] {
    let [mut used, mut exported] = [Vec::new(), Vec::new()];
    let text = text.split("mod tests {").next().unwrap();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    for statement in code.join(" ").split(';') {
        let (before, tree) = statement.rsplit_once("use ").unwrap_or((statement, ""));
        // By `pub use` or `pub(crate) use`.
        let is_exported = before.trim_end().ends_with(['b', ')']);
        expand("", tree, if is_exported { &mut exported } else { &mut used });
        let words = before.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let words = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
        used.extend(words.map(str::to_owned));
    }
    [used, exported]
}

fn join(module: &str, rest: &str) -> String {
    [module, rest].join("::").trim_matches(':').to_owned()
}

/// Returns the modules of a crate, each of which is a file, with the modules from which each imports: the defining
/// ones, not those that re-export.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let named = |(file, text): (String, String)| {
        let path = file.trim_end_matches(".rs").replace('/', "::");
        let is_root = path == "lib" || path == "main";
        let module = if is_root { String::new() } else { path.trim_end_matches("::mod").to_owned() };
        (!path.split("::").any(|word| word == "tests")).then(|| (module, paths(&text)))
    };
    let modules: BTreeMap<String, _> = sources(folder).into_iter().filter_map(named).collect();
    let above = |path: &str| path.rsplit_once("::").map_or("", |(above, _)| above).to_owned();
    // From the root of the crate; paths of other crates are none.
    let absolute = |module: &str, path: &str| {
        let mut module = module.to_owned();
        let rest = path.trim_start_matches("super::");
        (rest.len()..path.len()).step_by("super::".len()).for_each(|_| module = above(&module));
        let first = join(&module, rest.split("::").next().unwrap());
        let is_here = rest.len() < path.len() || modules.contains_key(&first);
        path.strip_prefix("crate::").map(str::to_owned).or(is_here.then(|| join(&module, rest)))
    };
    let exports: BTreeMap<String, String> = modules
        .iter()
        .flat_map(|(module, [_, exported])| exported.iter().map(move |path| (module, path)))
        .filter_map(|(module, path)| Some((join(module, path.rsplit("::").next()?), absolute(module, path)?)))
        .collect();
    let home = |mut path: String| loop {
        let mut module = path.clone();
        while !module.is_empty() && !modules.contains_key(&module) {
            module = above(&module);
        }
        let rest = path[module.len()..].trim_start_matches(':').to_owned();
        let (name, rest) = rest.split_once("::").unwrap_or((&rest, ""));
        match exports.get(&join(&module, name)) {
            Some(target) if !name.is_empty() && *target != path => path = join(target, rest),
            _ => break module,
        }
    };
    let imports = modules.iter().map(|(module, [used, exported])| {
        let home = |path: &String| absolute(module, path).map(home).filter(|home| home != module);
        // Re-exports from submodules are not imports.
        let above = exported.iter().filter_map(home).filter(|home| !home.starts_with(module));
        (module.clone(), used.iter().filter_map(home).chain(above).collect())
    });
    imports.collect()
}

/// Returns the largest set of modules that import each other.
fn largest_circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<&String> {
    let reached = imports.keys().map(|from| {
        let mut found = BTreeSet::new();
        let mut left = vec![from];
        while let Some(module) = left.pop() {
            left.extend(imports[module].iter().filter(|module| found.insert(*module)));
        }
        (from, found)
    });
    let reached: BTreeMap<&String, BTreeSet<&String>> = reached.collect();
    let circles = reached.iter().map(|(from, found)| -> Vec<&String> {
        found.iter().copied().filter(|module| reached[module].contains(from)).collect()
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}

/// `pub(super)` and `pub(crate)` suffice. A path in a visibility would count as an import of a distant parent.
#[test]
fn visibilities_have_no_path() {
    for (folder, ..) in LAYERS {
        for (file, text) in sources(&format!("{folder}/src")) {
            assert!(!text.contains("pub(in "), "write pub(super) or pub(crate) in {folder}/src/{file}");
        }
    }
}

#[test]
fn circles_of_imports_do_not_grow() {
    for (folder, ..) in LAYERS {
        let imports = imports(&format!("{folder}/src"));
        let circle = largest_circle(&imports);
        let limit = LARGEST_CIRCLES.iter().find(|(name, _)| *name == folder).map_or(0, |(_, limit)| *limit);
        assert!(circle.len() <= limit, "{limit} modules of {folder} may import each other: {circle:#?}");
    }
}
