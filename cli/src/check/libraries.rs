//! Optional libraries, such as MPI and NCCL. A library that this build does not use is located, but not loaded.

use super::report::CheckReport;
use crate::transports::{self, mpi};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest wait for a program that prints its version.
const ANSWER: Duration = Duration::from_secs(10);

pub(super) fn check(report: &mut CheckReport) {
    report.title("transports and libraries");
    report.good(&format!("transports built in: {}", transports::names()));
    match (program("mpirun"), mpi()) {
        (Some(path), Some(_)) => report.good(&format!("mpi: built in; {}", version(&path))),
        (Some(path), None) => report.note(&format!(
            "mpi: {}; it can start ranks, but the mpi transport is not built in: `cargo install hexagram-cli --features mpi` \
             adds it",
            version(&path)
        )),
        (None, Some(_)) => report.bad("mpi: built in, but mpirun is not in PATH to start its ranks; install MPI"),
        (None, None) => report.note("mpi: not built in, and no mpirun in PATH; only the mpi transport needs them"),
    }
    report.note(&nccl());
}

/// Returns a line with the NCCL version, or with the reason why NCCL is unavailable.
#[cfg(feature = "cuda")]
fn nccl() -> String {
    match hexagram::physical::nccl::version() {
        Ok(version) => format!("NCCL: version {version}"),
        Err(error) => format!("NCCL: {error}; only ranks on different GPUs need it"),
    }
}

/// Returns a line with the location of NCCL, which this build does not use.
#[cfg(not(feature = "cuda"))]
fn nccl() -> String {
    let place = place("libnccl.so.2", "install it, or add its folder to LD_LIBRARY_PATH");
    format!("NCCL: not built in, the feature `cuda` adds it; {place}")
}

/// Returns a clause with the location of a library.
#[cfg(not(feature = "cuda"))]
pub(super) fn place(library: &str, missing: &str) -> String {
    match find(library) {
        Some(path) => format!("{library} is at {}", path.display()),
        None => format!("{library} not found: {missing}"),
    }
}

/// Returns the path of a program in PATH.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns the first line of the version that a program prints.
fn version(program: &Path) -> String {
    let said = answer(Command::new(program).arg("--version"));
    let said = said.as_deref().and_then(|said| said.lines().find(|line| !line.trim().is_empty()));
    format!("{} ({})", program.display(), said.map_or("prints no version", str::trim))
}

/// Returns the stdout of a program, if it ends soon.
fn answer(command: &mut Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut output = child.stdout.take()?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes).map(|_| sender.send(bytes));
    });
    let said = receiver.recv_timeout(ANSWER);
    // The program has ended already, unless it did not answer.
    let _ = child.kill();
    let _ = child.wait();
    said.ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the path at which the dynamic loader finds a library: LD_LIBRARY_PATH, the loader cache, the default
/// folders.
pub(super) fn find(library: &str) -> Option<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = std::env::split_paths(&listed).filter(|folder| !folder.as_os_str().is_empty());
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let own = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(|folder| Path::new(folder).join(library));
    let candidates = listed.map(|folder| folder.join(library)).chain(cached(&cache, library)).chain(own);
    candidates.into_iter().find(|path| path.is_file())
}

/// Returns the paths of a library in the loader cache, which holds them as zero-terminated strings.
fn cached(cache: &[u8], library: &str) -> Vec<PathBuf> {
    let strings = cache.split(|byte| *byte == 0).filter_map(|bytes| std::str::from_utf8(bytes).ok());
    let is_it = |path: &&str| path.starts_with('/') && path.rsplit('/').next() == Some(library);
    strings.filter(is_it).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_its_whole_name() {
        let cache = b"glibc-ld.so.cache1.1\x01\xff\x00libcuda.so.1\0/opt/x/libcuda.so.1\0/opt/libcuda.so.12\0/a/xlibcuda.so.1\0";
        assert_eq!(cached(cache, "libcuda.so.1"), [PathBuf::from("/opt/x/libcuda.so.1")]);
        assert!(cached(b"", "libcuda.so.1").is_empty());
        assert!(find("libc.so.6").is_some() || find("libc.musl-x86_64.so.1").is_some());
        assert_eq!(find("libno-such-thing.so.1"), None);
    }

    #[test]
    fn a_program_that_does_not_exist_has_no_path() {
        assert!(program("sh").is_some());
        assert_eq!(program("no-such-program"), None);
    }
}
