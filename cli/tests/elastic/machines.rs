//! Elastic jobs on several machines: several launchers on this machine, each with two ranks.

use super::job::{Elastic, report, signal};
use super::random;
use crate::harness::{Ended, Launcher, folder, run};
use crate::nodes::Job;
use hexagram::physical::testing::is_deep;
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// A job whose launchers a test starts one by one.
struct Machines<'a> {
    job: Job,
    /// Numbers of machines, as for `--nnodes`.
    nodes: &'static str,
    options: Vec<&'a str>,
    script: &'static str,
}

impl<'a> Machines<'a> {
    fn new(test: u8, nodes: &'static str, options: &[&'a str]) -> Self {
        Machines { job: Job::new(test), nodes, options: options.to_vec(), script: "" }
    }

    fn launcher(&self, node: usize) -> Command {
        self.job.launcher(self.nodes, &node.to_string(), &self.options)
    }

    /// Starts `nodes` machines, and waits for their first generation. Returns its number, and the process ids by rank.
    fn start(&self, name: &str, nodes: usize) -> (Elastic, u64, Vec<i32>) {
        let mut job = Elastic::start_in(folder(name), self.launcher(0), self.script);
        (1..nodes).for_each(|node| self.add(&mut job, node));
        let (number, pids) = job.next(0, 2 * nodes);
        (job, number, pids)
    }

    fn add(&self, job: &mut Elastic, node: usize) {
        job.start_node(node, self.launcher(node), self.script);
    }
}

/// Lines of a launcher about the members.
fn news(ended: &Ended) -> Vec<&str> {
    ended.stderr.iter().filter_map(|line| line.strip_prefix("hexagram: ")).collect()
}

#[test]
fn a_machine_dies_and_comes_back_and_any_rank_is_replaced_on_its_machine() {
    let machines = Machines::new(31, "1:2", &["--elastic", "2", "--max-restarts", "2", "--rejoin-wait", "5"]);
    let (mut job, first, pids) = machines.start("elastic-machine", 2);
    let gone = job.others.remove(&1).unwrap();
    let killed = signal(gone.process.id().cast_signed(), Signal::KILL);
    let (second, left) = job.next(first, 2);
    report("from the death of a machine to an operation of the others", killed.elapsed());
    assert_eq!(left, pids[..2]);
    drop(gone);
    machines.add(&mut job, 1);
    let (third, pids) = job.next(second, 4);
    assert_eq!(pids[..2], left);
    signal(pids[2], Signal::KILL);
    let (fourth, now) = job.next(third, 4);
    assert_eq!(now[..3], [pids[0], pids[1], pids[3]]);
    signal(pids[0], Signal::KILL);
    let (_, now) = job.next(fourth, 4);
    assert_eq!(now[0], pids[1]);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let news = news(&ended);
    assert!(news.contains(&"node 1 is gone; 2 processes continue"), "{news:?}");
    let death = format!(
        "rank 2 (pid {} on node 1) was killed by signal 9 (SIGKILL); 3 processes continue; another",
        pids[2]
    );
    assert!(news.iter().any(|line| line.starts_with(&death)), "{news:?}");
}

#[test]
fn a_machine_arrives_during_the_work_and_one_leaves_by_a_signal() {
    let machines = Machines::new(32, "1:3", &["--elastic", "2", "--rejoin-wait", "1", "--max-restarts", "1"]);
    let (mut job, first, pids) = machines.start("elastic-machines", 2);
    machines.add(&mut job, 2);
    let (second, now) = job.next(first, 6);
    assert_eq!(now[..4], pids);
    let leaving = job.others.remove(&1).unwrap();
    leaving.signal(Signal::TERM);
    let (third, left) = job.next(second, 4);
    assert_eq!(left, [now[0], now[1], now[4], now[5]]);
    assert_eq!(leaving.finish().code, Some(143));
    // No start in place of others was spent on the machine that left.
    signal(left[0], Signal::KILL);
    job.next(third, 4);
    assert_eq!(job.stop().code, Some(0));
}

#[test]
fn a_machine_returns_to_its_folder_of_logs() {
    let logs = folder("elastic-machine-logs");
    let options = ["--elastic", "2", "--rejoin-wait", "1", "--log-dir", logs.to_str().unwrap()];
    let machines = Machines::new(38, "1:2", &options);
    let (mut job, first, _) = machines.start("elastic-logs", 2);
    let gone = job.others.remove(&1).unwrap();
    signal(gone.process.id().cast_signed(), Signal::KILL);
    let (second, _) = job.next(first, 2);
    drop(gone);
    machines.add(&mut job, 1);
    job.next(second, 4);
    assert_eq!(job.stop().code, Some(0));
    for file in ["rank-0.out", "rank-2.out", "newcomer-1/rank-2.out", "newcomer-2/rank-3.out"] {
        assert!(logs.join(file).exists(), "{file}");
    }
}

#[test]
fn a_machine_that_cannot_start_its_program_is_named_where_too_few_are_left() {
    let machines = Machines::new(39, "2", &["--elastic", "3", "--rejoin-wait", "1"]);
    let leader = machines.job.node("0", &machines.options, &["sleep", "600"]);
    let leader = Launcher::start(leader);
    let other = run(machines.job.node("1", &machines.options, &["/nonexistent"]));
    assert_ne!(other.code, Some(0));
    let leader = leader.finish();
    assert_eq!(leader.code, Some(1), "{:?}", leader.stderr);
    assert!(leader.stderr.last().unwrap().contains("node 1 is gone"), "{:?}", leader.stderr);
}

#[test]
fn the_job_continues_without_the_ranks_of_node_0_and_ends_without_its_launcher() {
    let machines = Machines::new(33, "1:2", &["--elastic", "2", "--rejoin-wait", "5"]);
    let (mut job, first, pids) = machines.start("elastic-leader", 2);
    signal(pids[0], Signal::KILL);
    signal(pids[1], Signal::KILL);
    let (_, left) = job.next(first, 2);
    assert_eq!(left, pids[2..]);
    job.launcher.signal(Signal::KILL);
    let other = job.others.remove(&1).unwrap().finish();
    assert_ne!(other.code, Some(0));
    let last = other.stderr.last().unwrap();
    assert!(last.contains("the launcher of node 0") && last.contains("has to outlive the job"), "{last}");
}

#[test]
fn too_few_ranks_on_all_machines_end_the_job_with_the_death() {
    let machines = Machines::new(34, "1:2", &["--elastic", "4", "--rejoin-wait", "5"]);
    let (mut job, _, pids) = machines.start("elastic-few", 2);
    signal(pids[3], Signal::KILL);
    let ended = job.launcher.finish();
    assert_eq!(ended.code, Some(1), "{:?}", ended.stderr);
    let death = format!("rank 3 (pid {} on node 1) was killed by signal 9 (SIGKILL)", pids[3]);
    assert!(ended.stderr.last().unwrap().contains(&death), "{:?}", ended.stderr);
    let other = job.others.remove(&1).unwrap().finish();
    assert_eq!(other.code, Some(137), "{:?}", other.stderr);
}

#[test]
fn a_stopped_machine_is_left_behind_and_cannot_return() {
    let mut machines = Machines::new(35, "1:2", &["--elastic", "2", "--rejoin-wait", "600"]);
    machines.script = "export HEXAGRAM_SILENCE=1;";
    let (mut job, first, pids) = machines.start("elastic-stopped-machine", 2);
    let stopped = job.others.remove(&1).unwrap();
    stopped.signal(Signal::STOP);
    for pid in &pids[2..] {
        signal(*pid, Signal::STOP);
    }
    let (_, left) = job.next(first, 2);
    assert_eq!(left, pids[..2]);
    stopped.signal(Signal::CONT);
    let stopped = stopped.finish();
    assert_ne!(stopped.code, Some(0));
    let refused =
        stopped.stderr.iter().any(|line| line.contains("node 1 has not started or ended its ranks in time"));
    assert!(refused, "{:?}", stopped.stderr);
    assert_eq!(job.stop().code, Some(0));
}

#[test]
fn a_launcher_without_elastic_is_refused() {
    let machines = Machines::new(36, "1:2", &["--elastic", "2", "--rejoin-wait", "1"]);
    let (job, ..) = machines.start("elastic-options", 1);
    let mut other = machines.job.launcher("1:2", "1", &[]);
    other.args(["--", "true"]);
    let ended = run(other);
    assert_eq!(ended.code, Some(1), "{:?}", ended.stderr);
    assert!(ended.stderr[0].contains("only the launcher of node 0 has --elastic"), "{:?}", ended.stderr);
    assert_eq!(job.stop().code, Some(0));
}

/// Under `./test deep`, for 5 minutes.
#[test]
fn machines_that_come_and_go_at_random_moments_do_not_hang() {
    let machines =
        Machines::new(37, "1:3", &["--elastic", "1", "--max-restarts", "100000", "--rejoin-wait", "20"]);
    let (mut job, mut number, _) = machines.start("elastic-machines-random", 3);
    let (until, longest) =
        if is_deep() { (Duration::from_secs(300), 1500) } else { (Duration::from_secs(3), 500) };
    let since = Instant::now();
    let mut took = Vec::new();
    while since.elapsed() < until {
        std::thread::sleep(Duration::from_millis(random() % longest));
        job.read_arrived();
        let pids;
        (number, pids) = job.next_of_any_size(number - 1);
        let began = Instant::now();
        if random().is_multiple_of(2) {
            let node = 1 + random() as usize % 2;
            drop(job.others.remove(&node));
            machines.add(&mut job, node);
        } else {
            signal(pids[random() as usize % pids.len()], Signal::KILL);
        }
        (number, _) = job.next_of_any_size(number);
        took.push(began.elapsed());
    }
    // A busy machine may have been refused.
    for node in [1, 2] {
        if job.others.get_mut(&node).unwrap().process.try_wait().unwrap().is_some() {
            machines.add(&mut job, node);
        }
    }
    job.next(number - 1, 6);
    took.sort();
    report(&format!("{} kills, median", took.len()), took[took.len() / 2]);
    report("worst", took[took.len() - 1]);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr.last());
}
