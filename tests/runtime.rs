//! Holds that time, threads and sockets above the backends are asked for in one place, so that a simulated world can
//! give them out: `hexagram_physical::runtime`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the other test that reads sources needs more of it")]
#[path = "language/paths.rs"]
mod paths;
#[allow(dead_code, reason = "the other test that reads sources needs more of it")]
#[path = "language/source.rs"]
mod source;

use source::{Source, sources};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Sources above the backends.
const ABOVE: [&str; 9] = [
    "physical/src",
    "logical/src",
    "algorithms/src",
    "adapters/candle/src",
    "cli/src",
    "lab/src",
    "src",
    "examples/own-algorithm/src",
    "examples/own-transport/src",
];

/// Folders and files that may name the system's clocks, threads and sockets, and why.
const EXEMPT: [(&str, &str); 19] = [
    ("physical/src/runtime", "is the place"),
    ("physical/src/thread/", "is a backend"),
    ("physical/src/shm/", "is a backend"),
    ("physical/src/tcp/", "is a backend"),
    ("physical/src/mpi/", "is a backend"),
    ("physical/src/sim/", "is a backend, and gives simulated ranks all of these"),
    ("physical/src/doorbell.rs", "is what backends stand on"),
    ("physical/src/testing/late.rs", "is a device, with threads of its own"),
    ("physical/src/device/cuda/", "is a device, with a thread of its own"),
    ("physical/src/nccl/ending.rs", "waits when the process ends, and has no world any more"),
    ("physical/src/testing/transport/", "is tests of transports, which run on the system"),
    ("physical/src/launch/", "starts and ends processes of the system, which no simulated world has"),
    ("physical/src/patience.rs", "measures how fast this machine wakes a thread"),
    ("physical/src/bootstrap/local.rs", "connects as the system does, for the runtime and for shared memory"),
    ("physical/src/bootstrap/reachable.rs", "asks the system which way leads to a host, and sends nothing"),
    ("physical/src/bootstrap/poller.rs", "asks the system what is ready, and never waits for it"),
    (
        "physical/src/bootstrap/stream.rs",
        "sets the system's timeouts, and waits by the runtime where they do not pass",
    ),
    ("cli/src/check/", "looks at this machine"),
    ("examples/own-transport/src/", "is a transport"),
];

/// What the standard library and the system are asked by; a name that begins with a letter is looked for as a whole.
const WORDS: [&str; 32] = [
    "Instant::now",
    "SystemTime",
    "UNIX_EPOCH",
    "time::Instant",
    "thread::spawn",
    "thread::scope",
    "thread::sleep",
    "thread::sleep_ms",
    "thread::park",
    "thread::Builder",
    "Builder::new",
    "spawn_scoped",
    "park_timeout",
    "wait_timeout",
    "wait_timeout_while",
    "recv_timeout",
    "recv_deadline",
    "TcpStream::connect",
    "TcpStream::connect_timeout",
    "TcpStream>::connect",
    "TcpListener::bind",
    "UdpSocket",
    "UnixStream::connect",
    "UnixStream::connect_addr",
    "UnixListener::bind",
    "UnixListener::bind_addr",
    "to_socket_addrs",
    "rustix::event",
    "set_socket_timeout",
    "tokio",
    "mio",
    "socket2",
];

/// Modules that nobody imports all names of.
const MODULES: [&str; 4] = ["std::thread::*", "std::time::*", "std::net::*", "std::os::unix::net::*"];

/// Where a source names one of them, as `path:line: word`, whatever it calls them.
fn named(source: &Source) -> Vec<String> {
    let lines = source.code.lines().enumerate().map(|(at, text)| (at + 1, text.to_owned()));
    let paths = paths::named(source).into_iter().map(|named| (named.line, named.text()));
    let is_letter =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let mut found = BTreeSet::new();
    for (line, text) in lines.chain(paths) {
        for word in WORDS {
            let is_whole = |at: usize| {
                !is_letter(text[..at].chars().last()) && !is_letter(text[at + word.len()..].chars().next())
            };
            if text.match_indices(word).any(|(at, _)| is_whole(at)) {
                found.insert((line, word));
            }
        }
        found.extend(MODULES.into_iter().filter(|module| text == *module).map(|module| (line, module)));
    }
    found.into_iter().map(|(line, word)| format!("{}:{line}: {word}", source.path)).collect()
}

/// The sources above the backends, without those that are compiled for tests only.
fn above() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ABOVE.iter().flat_map(|folder| sources(&root.join(folder)));
    let mut found = Vec::new();
    let mut tests = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        tests.extend(source::test_modules(&text, &file));
        let path = file.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        found.push((file, Source::new(&path, &text)));
    }
    found.retain(|(file, _)| {
        !tests.iter().any(|test| file == test || file.starts_with(test.with_extension("")))
    });
    found.into_iter().map(|(_, source)| source).collect()
}

#[test]
fn nobody_above_the_backends_asks_the_system_for_time_threads_or_sockets() {
    let sources = above();
    let is_exempt = |source: &&Source| EXEMPT.iter().any(|(path, _)| source.path.starts_with(path));
    let named: Vec<_> = sources.iter().filter(|source| !is_exempt(source)).flat_map(named).collect();
    assert!(named.is_empty(), "ask hexagram_physical::runtime instead, or say here why not: {named:#?}");
}

/// An exemption that nothing needs any more would hide what comes later.
#[test]
fn every_exemption_is_needed() {
    let sources = above();
    for (path, reason) in EXEMPT {
        let below = |source: &&Source| source.path.starts_with(path);
        let is_needed = sources.iter().filter(below).any(|source| !named(source).is_empty());
        assert!(is_needed, "{path} {reason}, and names nothing");
    }
}

#[test]
fn what_is_named_is_found() {
    let find = |text: &str| named(&Source::new("x.rs", text));
    assert_eq!(find("fn f() { let t = std::time::Instant::now(); }").len(), 2);
    assert_eq!(find("use std::thread::{self, Builder};\nuse std::time::{Duration, Instant};").len(), 2);
    assert_eq!(find("fn f() { thread::sleep(d); }"), ["x.rs:1: thread::sleep"]);
    let by_another_name = [
        "use std::time::Instant as Clock; fn f() { Clock::now(); }",
        "use std::{thread as threads, io};\nfn f() { threads::spawn(g); }",
        "use std::{sync::{Arc, mpsc}, time::{Duration, Instant as Clock}};",
        "use std::thread::{\n    self as threads,\n    Builder as Maker,\n};\nfn f() { Maker::new(); }",
        "fn f() {\n    std::thread\n        ::scope(g);\n}",
        "use std::thread::*; fn f() { spawn(g); }",
        "use std::time::{self as t}; fn f() -> t::Instant { g() }",
        "use std::net::TcpStream as Stream; fn f() { Stream::connect(a); }",
        "fn f() { <std::net::TcpStream>::connect(a); }",
        "use std::net::*;",
        "pub use std::time::SystemTime as Date;",
        "use tokio::time as clock; fn f() { clock::sleep(d); }",
        "fn f() { std::thread::Builder::new().spawn(g); }",
        "use std as s; fn f() { s::thread::park(); }",
    ];
    for text in by_another_name {
        assert!(!find(text).is_empty(), "{text}");
    }
    let unnamed = "// Instant::now\nuse std::time::Duration; fn f() { runtime::sleep(d); runtime::now(); my_thread::spawner(); }\n\
                   #[cfg(test)] mod tests { fn g() { thread::sleep(d); } }";
    assert_eq!(find(unnamed), [""; 0]);
}
