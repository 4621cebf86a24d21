//! `hexagram run` on several machines: several launchers on this machine, each with a different loopback address.

use crate::harness::{Launcher, by_rank, folder, hexagram, run};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A job on two machines.
pub(crate) struct Job {
    pub(crate) address: String,
    pub(crate) secret: PathBuf,
}

impl Job {
    /// All of 127.0.0.0/8 is local, so an address derived from process and test is unique.
    pub(crate) fn new(test: u8) -> Self {
        let [.., high, low] = std::process::id().to_be_bytes();
        let secret = folder(&format!("nodes-{test}")).join("secret");
        fs::write(&secret, "only these two know").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        Job { address: format!("127.{}.{high}.{low}:29471", 100 + test), secret }
    }

    /// The launcher of one of two machines, with two ranks.
    pub(crate) fn node(&self, number: &str, options: &[&str], program: &[&str]) -> Command {
        self.node_of("2", number, options, program)
    }

    /// The launcher of one machine of `nodes`, with two ranks.
    pub(crate) fn node_of(&self, nodes: &str, number: &str, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.launcher(nodes, number, options);
        command.arg("--").args(program);
        command
    }

    /// The launcher of one machine of `nodes`, for two ranks, without its program.
    pub(crate) fn launcher(&self, nodes: &str, number: &str, options: &[&str]) -> Command {
        let mut command =
            hexagram(&["-n", "2", "--nnodes", nodes, "--node-rank", number, "--addr", &self.address]);
        command.arg("--secret-file").arg(&self.secret).args(options);
        command
    }
}

#[test]
fn ranks_are_numbered_node_by_node() {
    let job = Job::new(1);
    let script = "echo $HEXAGRAM_RANK/$HEXAGRAM_SIZE $HEXAGRAM_LOCAL_RANK/$HEXAGRAM_LOCAL_SIZE $HEXAGRAM_ADDR \
        ${HEXAGRAM_LISTEN_FD:+listens}; cat $HEXAGRAM_SECRET_FILE";
    for (number, ranks) in [("0", [0, 1]), ("1", [2, 3])] {
        let ended = run(job.node(number, &[], &["sh", "-c", script]));
        assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
        let said = by_rank(&ended.stdout);
        assert!(said.keys().eq(&ranks), "{said:?}");
        for (local, rank) in ranks.into_iter().enumerate() {
            let listens = if rank == 0 { " listens" } else { "" };
            let place = format!("{rank}/4 {local}/2 {}{listens}", job.address);
            assert_eq!(said[&rank], [place.as_str(), "only these two know"]);
        }
    }
}

#[test]
fn ranks_of_two_nodes_compute_together() {
    let job = Job::new(2);
    let bench = [
        env!("CARGO_BIN_EXE_hexagram"),
        "bench",
        "all_reduce",
        "--transport",
        "tcp",
        "-b",
        "64K",
        "-e",
        "64K",
        "--iters",
        "5",
    ];
    let second = Launcher::start(job.node("1", &[], &bench));
    let first = run(job.node("0", &[], &bench));
    let second = second.finish();
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{:?} {:?}", first.stderr, second.stderr);
    assert!(first.stdout[0].starts_with("[0] # all_reduce: 4 ranks, tcp"), "{:?}", first.stdout);
    assert!(first.stdout.last().unwrap().ends_with(" 0"), "{:?}", first.stdout);
    assert_eq!(second.stdout, [""; 0]);
}

#[test]
fn a_rank_that_is_killed_ends_the_job_on_both_nodes() {
    let job = Job::new(3);
    let script = r#"echo $$; exec "$0" bench all_reduce --transport tcp -b 64K -e 64K --iters 1000000000"#;
    let bench = ["sh", "-c", script, env!("CARGO_BIN_EXE_hexagram")];
    let first = Launcher::start(job.node("0", &[], &bench));
    let second = Launcher::start(job.node("1", &["--show", "3"], &bench));
    // The heading is printed when all have joined; a rank keeps the process id of its shell.
    let victim = second.line();
    let victim = victim.strip_prefix("[3] ").unwrap();
    while !first.line().contains("#") {}
    kill_process(Pid::from_raw(victim.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let first = first.finish();
    let second = second.finish();
    assert_eq!((first.code, second.code), (Some(1), Some(137)), "{:?} {:?}", first.stderr, second.stderr);
    let blamed =
        format!("rank 3 (host {}, pid {victim})", rustix::system::uname().nodename().to_string_lossy());
    for rank in ["[0] ", "[1] "] {
        let names = |line: &String| line.starts_with(rank) && line.contains(&blamed);
        assert!(first.stderr.iter().any(names), "{:?}", first.stderr);
    }
    let report = first.stderr.last().unwrap();
    assert!(report.ends_with("exited with code 1 first on node 0; ended the other rank here"), "{report}");
    let report = second.stderr.last().unwrap();
    let killed = format!("rank 3 (pid {victim}) was killed by signal 9 (SIGKILL) first on node 1");
    assert!(report.contains(&killed), "{report}");
}

#[test]
fn what_several_nodes_need_is_asked_for() {
    let job = Job::new(4);
    let refused = |command: Command, code: i32, what: &str| {
        let ended = run(command);
        assert_eq!(ended.code, Some(code), "{:?}", ended.stderr);
        assert!(ended.stderr.len() == 1 && ended.stderr[0].contains(what), "{:?}", ended.stderr);
    };
    let mut nameless =
        hexagram(&["-n", "1", "--nnodes", "2", "--node-rank", "0", "--addr", &job.address, "true"]);
    nameless.env_remove("HEXAGRAM_SECRET_FILE");
    refused(nameless, 2, "head -c 32 /dev/urandom");
    refused(hexagram(&["-n", "1", "--nnodes", "2", "true"]), 2, "--node-rank and --addr");
    refused(job.node("2", &[], &["true"]), 2, "node 2 does not exist among 2");
    let elsewhere = |address: &str| {
        let job = Job { address: address.into(), secret: job.secret.clone() };
        job.node("0", &[], &["true"])
    };
    refused(elsewhere("192.0.2.1:29471"), 1, "rank 0 must run on the host that this address names");
    refused(elsewhere("0.0.0.0:29471"), 1, "not an address that other ranks can reach");
    refused(elsewhere("nowhere"), 1, "host:port");
    fs::remove_file(&job.secret).unwrap();
    refused(job.node("1", &[], &["true"]), 1, job.secret.to_str().unwrap());
}
