//! The secret that all ranks of a job share: given in a file, or made by rank 0 for the ranks of its own host.
//!
//! If the launcher provides no secret (mpirun, the variables of torchrun), ranks of one host share a file that only
//! this user can read, in `$XDG_RUNTIME_DIR` or else in a private folder among the temporary files. Its name follows
//! from the rendezvous address. Only the process that listens at that address writes the file, so that two jobs never
//! share one. Rank 0 removes it at the end of the rendezvous. A file that a killed rank 0 left behind is useless; the
//! next job of this user removes it, recognizing it by its lost lock.

use super::{hex, random};
use crate::bootstrap::private_file::{LONGEST, MAKE, open, private};
use crate::bootstrap::sockets::local::network_namespace;
use crate::bootstrap::variables::{Launcher, Placement};
use crate::error::{Error, Result};
use crate::runtime;
use crate::system::environment::variable_os;
use hmac_sha256::Hash;
use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Longest wait for another process that makes a secret at the same time, in milliseconds.
const TURNS: usize = 100;

/// How the ranks of a Slurm step meet without an address and a secret.
const BY_THEMSELVES: &str = "start the step with `srun --mpi=pmi2` or `srun --mpi=pmix`, which need neither";

/// Returns a fresh secret, as text.
pub fn draw() -> io::Result<String> {
    let [high, low] = [random::<16>()?, random::<16>()?].map(u128::from_be_bytes);
    Ok(format!("{high:032x}{low:032x}"))
}

/// Source of the job's secret.
pub(crate) enum Secret {
    /// Secret that was given.
    Given(Vec<u8>),
    /// File that rank 0 makes.
    Shared(PathBuf),
}

impl Secret {
    /// Returns the source of the secret for this process.
    ///
    /// # Errors
    /// [`Error::Setup`] if ranks may be on other hosts and there is no secret; [`Error::System`] if this user has no
    /// private folder.
    pub(crate) fn of(placement: &Placement, patience: Duration) -> Result<Self> {
        if !placement.secret.is_empty() {
            return Ok(Secret::Given(placement.secret.clone()));
        }
        if placement.size == 1 {
            let nobodys = draw().map_err(Error::no_random)?;
            return Ok(Secret::Given(nobodys.into_bytes()));
        }
        let job = match placement.rendezvous.addresses(patience) {
            None => placement.rendezvous.to_string(),
            Some(addresses) => own(placement, addresses)?.to_string(),
        };
        // Temporary files are shared by all networks of a host, addresses are not.
        let hash = Hash::hash(format!("{} {job}", network_namespace()).as_bytes());
        let name = hex(&hash[..8]);
        let runtime = variable_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Ok(Secret::Shared(directory(runtime, std::env::temp_dir())?.join(format!("hexagram-{name}.secret"))))
    }

    /// Returns the secret of rank 0, whose process must listen at the rendezvous, and its file, if it is made for
    /// this job.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be written.
    pub(crate) fn for_rank_0(&self) -> Result<(Vec<u8>, Option<SecretFile>)> {
        match self {
            Secret::Given(secret) => Ok((secret.clone(), None)),
            Secret::Shared(path) => {
                let secret = draw().map_err(Error::no_random)?.into_bytes();
                let file = SecretFile::create(path, &secret).map_err(|cause| {
                    let doing = format!("write the job's secret to {}", path.display());
                    Error::system(doing, cause, format!("free disk space there, or {MAKE}"))
                })?;
                Ok((secret, Some(file)))
            }
        }
    }

    /// Returns the current secret, or `None` if rank 0 has not written it yet.
    ///
    /// # Errors
    /// [`Error::Setup`] if other users could read the file, [`Error::System`] if this process cannot.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>> {
        let path = match self {
            Secret::Given(secret) => return Ok(Some(secret.clone())),
            Secret::Shared(path) => path,
        };
        let name = path.display().to_string();
        let failed = |cause: io::Error| {
            Error::system(format!("read the job's secret from {name}"), cause, "check the owner of that file")
        };
        let mut file = match open(path, OFlags::NOFOLLOW) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            outcome => outcome.map_err(failed)?,
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        private(&stat, &name).map_err(|(what, _)| {
            Error::setup(format!("the job's secret in {name} {what}"), format!("remove {name}"))
        })?;
        let mut secret = Vec::new();
        (&mut file).take(LONGEST as u64).read_to_end(&mut secret).map_err(failed)?;
        Ok(Some(secret))
    }

    /// Creates the error of a member for which [`Secret::read`] returned none.
    pub(crate) fn missing(&self) -> io::Error {
        let path = if let Secret::Shared(path) = self { path.as_path() } else { Path::new("") };
        let what = format!(
            "rank 0 has not written the job's secret to {} (ranks that do not share it need HEXAGRAM_SECRET_FILE)",
            path.display()
        );
        io::Error::new(io::ErrorKind::NotFound, what)
    }

    /// Returns a possible reason why ranks are missing on rank 0.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Secret::Given(_) => "",
            Secret::Shared(_) => {
                "; without HEXAGRAM_SECRET_FILE only processes of this user on this host can join"
            }
        }
    }
}

/// Returns the rendezvous address if all ranks may be on its host, and an error otherwise.
fn own(placement: &Placement, addresses: io::Result<Vec<SocketAddr>>) -> Result<SocketAddr> {
    let rendezvous = &placement.rendezvous;
    let or_else = |remedy: &str| match placement.launcher {
        Launcher::Slurm => format!("{BY_THEMSELVES}, or {remedy}"),
        _ => remedy.to_owned(),
    };
    let addresses = addresses.map_err(|cause| {
        let doing = format!("look up {rendezvous}, the rendezvous of all ranks");
        Error::system(doing, cause, or_else("correct the name of the host of rank 0"))
    })?;
    let own = |address: &&SocketAddr| runtime::is_of_this_host(**address);
    let several = placement.local_size < placement.size;
    // The lowest, since names may resolve in a different order on the next call.
    match addresses.iter().filter(own).min() {
        Some(address) if address.ip().is_loopback() || !several => Ok(*address),
        found => {
            let what = match found {
                Some(_) => format!("{rendezvous} is the rendezvous of ranks on several hosts"),
                None => format!("{rendezvous}, the rendezvous of all ranks, is on a different host"),
            };
            Err(Error::setup(format!("{what}, and this job has no secret"), or_else(MAKE)))
        }
    }
}

/// Returns a folder of this user that no other user can enter. Creates it, if necessary.
fn directory(runtime: Option<PathBuf>, temporary: PathBuf) -> Result<PathBuf> {
    let mine = |path: &Path| {
        let stat = rustix::fs::lstat(path)?;
        let private = FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_mode & 0o077 == 0;
        if private { Ok(()) } else { Err(io::Error::other("other users can enter it")) }
    };
    // It may belong to a different user, left over in the environment.
    if let Some(runtime) = runtime.filter(|path| path.is_absolute() && mine(path).is_ok()) {
        return Ok(runtime);
    }
    let path = temporary.join(format!("hexagram-{}", rustix::process::geteuid().as_raw()));
    let made = match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    };
    made.and_then(|()| mine(&path)).map_err(|cause| {
        let doing = format!("keep the job's secret in {}", path.display());
        let see = match cause.kind() {
            io::ErrorKind::NotFound => "set TMPDIR to an existing folder",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "set TMPDIR to a writable folder"
            }
            _ => "check the owner of that folder",
        };
        Error::system(doing, cause, format!("{see}, or {MAKE}"))
    })?;
    Ok(path)
}

/// Secret on disk, removed when dropped.
pub(crate) struct SecretFile {
    /// Path of the file.
    path: PathBuf,
    /// File, locked as long as this process lives.
    file: File,
}

impl SecretFile {
    /// Creates the file atomically, in place of one that an earlier job may have left.
    fn create(path: &Path, secret: &[u8]) -> io::Result<Self> {
        let folder = File::open(path.parent().unwrap_or(path))?;
        // One process at a time, since a new file might look left over. Without locks, left-over files stay.
        let turn = take_turn(&folder);
        if turn {
            remove_left_over(path.parent().unwrap_or(path));
        }
        let draft = path.with_extension(format!("{:016x}", u64::from_be_bytes(random()?)));
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&draft)?;
        let mut draft = SecretFile { path: draft, file };
        draft.file.write_all(secret)?;
        let _ = flock(&draft.file, FlockOperation::NonBlockingLockExclusive);
        std::fs::rename(&draft.path, path)?;
        draft.path = path.to_owned();
        // Not by closing it: a process that is just starting may hold a copy of the descriptor.
        let _ = flock(&folder, FlockOperation::Unlock);
        Ok(draft)
    }
}

/// Locks `folder` until it is closed. Returns false if another process, which may have been stopped, keeps the lock
/// for [`TURNS`].
fn take_turn(folder: &File) -> bool {
    (0..TURNS).any(|turn| {
        if turn > 0 {
            runtime::sleep(Duration::from_millis(1));
        }
        flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// Removes the secrets in `folder` whose rank 0 has been killed.
fn remove_left_over(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    for path in files.flatten().map(|file| file.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_prefix("hexagram-").and_then(|rest| rest.split_once('.'));
        // A secret, or the draft of one.
        let ours =
            |(number, kind): (&str, &str)| number.len() == 16 && (kind == "secret" || kind.len() == 16);
        let file = stem.filter(|stem| ours(*stem)).map(|_| open(&path, OFlags::NOFOLLOW));
        if let Some(Ok(file)) = file
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // The whole folder may be gone.
        let _ = std::fs::remove_file(&self.path);
    }
}
