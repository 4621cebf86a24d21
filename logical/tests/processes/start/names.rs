//! Names and addresses by which the ranks of several hosts find rank 0. Needs root and the `ip` program.

use crate::processes::job::Job;
use crate::processes::network::Hosts;
use hexagram_logical::TransportKind;
use std::process::Command;

/// Hosts; reports if this process may not create them.
pub(crate) fn hosts(count: usize) -> Option<Hosts> {
    let hosts = Hosts::start(count);
    if hosts.is_none() {
        eprintln!("skipped: network namespaces need root and the `ip` program");
    }
    hosts
}

/// One rank on each host, all of which meet at `address`.
pub(crate) fn meet(
    hosts: &Hosts,
    count: usize,
    address: &str,
    mut adapt: impl FnMut(usize, &mut Command),
) -> Job {
    let commands = hosts.ranks(count, 29500).enumerate().map(|(rank, mut command)| {
        command.env("HEXAGRAM_ADDR", address);
        adapt(rank, &mut command);
        command
    });
    Job::of(commands, "add", TransportKind::Mixed)
}

fn all_finish(mut job: Job) {
    job.all_hear("finished");
    job.ends();
}

#[test]
fn rank_0_is_found_by_either_family_of_its_name() {
    let Some(hosts) = hosts(3) else { return };
    if !hosts.have_ipv6() {
        eprintln!("skipped: this kernel has no IPv6");
        return;
    }
    hosts.resolve(0, "node0", &["10.99.0.1", "fd99::1"]);
    hosts.resolve(1, "node0", &["10.99.0.1"]);
    hosts.resolve(2, "node0", &["fd99::1"]);
    all_finish(meet(&hosts, 3, "node0:29500", |_, _| ()));
}

#[test]
fn a_link_local_address_is_of_each_ranks_own_interface() {
    let Some(hosts) = hosts(3) else { return };
    if !hosts.have_ipv6() {
        eprintln!("skipped: this kernel has no IPv6");
        return;
    }
    // The interfaces have one name and different numbers.
    all_finish(meet(&hosts, 3, "[fe80::99:1%eth0]:29500", |_, _| ()));
    all_finish(meet(&hosts, 3, "10.99.0.1:29500", |rank, command| {
        command.env("HEXAGRAM_INTERFACE", format!("fe80::99:{}%eth0", rank + 1));
    }));
}

#[test]
fn a_name_that_is_loopback_on_its_own_host_is_refused_where_ranks_are_elsewhere() {
    let Some(hosts) = hosts(2) else { return };
    hosts.resolve(0, "node0", &["127.0.1.1"]);
    let mut job = meet(&hosts, 2, "node0:29500", |_, _| ());
    let said = job.failure(0).text;
    for part in ["node0", "127.0.1.1 on its own host", "none of the 1 ranks on other hosts", "/etc/hosts"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
