//! Tests of the job's secret: rejected files, and the cleanup of a file that rank 0 created.

use super::*;
use crate::bootstrap::private_file::read_given;
use crate::bootstrap::{Launcher, Rendezvous};
use rustix::fs::Mode;
use rustix::io::FdFlags;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Longest time to resolve a name.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folder of one test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("hexagram-test-{}", draw().unwrap()));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Scratch(path)
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn refusal(path: &str) -> String {
    read_given(path).unwrap_err().to_string()
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_command_that_mends_it() {
    let scratch = Scratch::new();
    for mode in [0o640, 0o604, 0o660, 0o644, 0o610] {
        let path = scratch.file("secret", &[7; 32], mode);
        let message = refusal(&path);
        assert!(message.contains(&format!("(mode 0{mode:o})")), "{message}");
        assert!(message.contains(&format!("chmod 600 {path}")), "{message}");
    }
    for mode in [0o600, 0o400] {
        assert_eq!(read_given(&scratch.file(&mode.to_string(), &[7; 32], mode)).unwrap(), [7; 32]);
    }
}

#[test]
fn what_a_launcher_left_open_stays_in_this_process() {
    let scratch = Scratch::new();
    let file = File::open(scratch.file("secret", &[7; 32], 0o600)).unwrap();
    rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    for _ in 0..2 {
        assert_eq!(read_given(&path).unwrap(), [7; 32]);
    }
    assert_eq!(rustix::io::fcntl_getfd(&file).unwrap(), FdFlags::CLOEXEC);
}

#[test]
fn what_is_no_secret_is_refused() {
    let scratch = Scratch::new();
    assert!(refusal(&scratch.file("empty", b"", 0o600)).contains("is empty"));
    assert!(refusal(&scratch.file("short", b"sesame", 0o600)).contains("6 bytes, so it can be guessed"));
    assert!(refusal(&scratch.file("long", &[1; 5000], 0o600)).contains("more than 4096 bytes"));
    assert!(refusal("/dev/zero").contains("is not a regular file"));
    assert!(refusal(&scratch.0.display().to_string()).contains("is not a regular file"));
    let pipe = scratch.0.join("pipe").display().to_string();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(refusal(&pipe).contains("is not a regular file"));
    assert!(refusal("/does/not/exist").contains("/does/not/exist"));
}

#[test]
fn another_users_file_is_refused() {
    let mut stat = rustix::fs::stat("/proc/self/exe").unwrap();
    stat.st_uid = rustix::process::geteuid().as_raw() + 1;
    assert!(private(&stat, "x").unwrap_err().0.contains("belongs to user"));
}

#[test]
fn the_private_folder_is_made_once_and_never_trusted_blindly() {
    let scratch = Scratch::new();
    let place = |runtime: Option<&Path>| directory(runtime.map(Path::to_owned), scratch.0.clone());
    let own = scratch.0.join(format!("hexagram-{}", rustix::process::geteuid().as_raw()));
    assert_eq!(place(None).unwrap(), own);
    assert_eq!(place(None).unwrap(), own);
    assert_eq!(place(Some(&scratch.0)).unwrap(), scratch.0);
    let adrift = directory(None, scratch.0.join("gone")).unwrap_err().to_string();
    assert!(adrift.contains("set TMPDIR to an existing folder"), "{adrift}");
    let open_to_all = scratch.0.join("open");
    std::fs::create_dir(&open_to_all).unwrap();
    std::fs::set_permissions(&open_to_all, std::fs::Permissions::from_mode(0o755)).unwrap();
    for useless in [open_to_all.as_path(), Path::new("relative"), Path::new("/does/not/exist")] {
        assert_eq!(place(Some(useless)).unwrap(), own, "{useless:?}");
    }
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o750)).unwrap();
    assert!(place(None).unwrap_err().to_string().contains("other users can enter it"));
    std::fs::remove_dir(&own).unwrap();
    symlink(&open_to_all, &own).unwrap();
    assert!(place(None).unwrap_err().to_string().contains("other users can enter it"));
}

#[test]
fn a_file_left_by_a_killed_job_is_replaced_and_nothing_remains() {
    let scratch = Scratch::new();
    let path = scratch.0.join("job.secret");
    std::fs::write(&path, "left over").unwrap();
    let secret = Secret::Shared(path.clone());
    let (bytes, file) = secret.for_rank_0().unwrap();
    assert_eq!(secret.read().unwrap().unwrap(), bytes);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(file);
    assert_eq!(secret.read().unwrap(), None);
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn what_killed_jobs_left_is_removed_by_the_next_one_and_what_lives_is_not() {
    let scratch = Scratch::new();
    let of_job = |number: &str| scratch.0.join(format!("hexagram-{number}.secret"));
    let (_, living) = Secret::Shared(of_job("00000000000000aa")).for_rank_0().unwrap();
    scratch.file("hexagram-00000000000000bb.secret", b"left over", 0o600);
    scratch.file("hexagram-00000000000000bb.00000000000000cc", b"left over half-way", 0o600);
    scratch.file("hexagram-of-somebody.secret", b"not ours", 0o600);
    let (_, next) = Secret::Shared(of_job("00000000000000dd")).for_rank_0().unwrap();
    let left = || std::fs::read_dir(&scratch.0).unwrap().count();
    assert_eq!(left(), 3);
    drop((living, next));
    assert_eq!(left(), 1);
}

#[test]
fn a_planted_link_is_neither_read_nor_written_through() {
    let scratch = Scratch::new();
    let victim = scratch.file("victim", b"precious and long enough", 0o600);
    let secret = Secret::Shared(scratch.0.join("job.secret"));
    symlink(&victim, scratch.0.join("job.secret")).unwrap();
    assert!(secret.read().is_err());
    let made = secret.for_rank_0().unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious and long enough");
    assert_eq!(secret.read().unwrap().unwrap(), made.0);
}

fn placement(host: &str, local_size: usize, secret: &[u8]) -> Placement {
    let rendezvous = Rendezvous::Tcp { host: host.to_owned(), port: 29500, agent: false };
    let secret = secret.to_vec();
    let launcher = Launcher::Torchrun;
    Placement { rank: 0, size: 2, local_rank: 0, local_size, rendezvous, secret, launcher }
}

#[test]
fn several_hosts_need_a_secret() {
    // Of a block that is kept for documentation.
    let error = Secret::of(&placement("192.0.2.7", 2, b""), PATIENCE).err().unwrap().to_string();
    assert!(error.contains("192.0.2.7:29500") && error.contains("no secret"), "{error}");
    assert!(error.contains("/dev/urandom") && error.contains("HEXAGRAM_SECRET_FILE"), "{error}");
    assert!(matches!(Secret::of(&placement("192.0.2.7", 2, b"x"), PATIENCE), Ok(Secret::Given(_))));
    assert!(matches!(Secret::of(&placement("127.0.0.1", 1, b""), PATIENCE), Ok(Secret::Shared(_))));
}

#[test]
fn jobs_at_different_addresses_have_different_files() {
    let path = |host| match Secret::of(&placement(host, 2, b""), PATIENCE).unwrap() {
        Secret::Shared(path) => path,
        Secret::Given(_) => panic!("{host}"),
    };
    assert_eq!(path("127.0.0.1"), path("127.0.0.1"));
    assert_ne!(path("127.0.0.1"), path("127.0.0.2"));
}
