//! Jobs of real processes: how they start, the paths of their bytes, and the other ranks' errors when one fails. Each
//! test starts this program again, once per rank, as the test [`one_rank`].

mod failures;
mod job;
mod network;
mod paths;
mod start;

use std::env;

#[test]
#[ignore = "the other tests start it as a process"]
fn one_rank() {
    let Ok(role) = env::var(job::ROLE) else { return };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match role.as_str() {
        "add" => start::ranks::play(),
        "count" | "reduce" => paths::ranks::play(&role),
        role => failures::ranks::play(role),
    }
}
