//! `hexagram check`: checks this machine for hexagram, and whether two ranks can communicate on it.
//!
//! `report` is the form, `interfaces`, `limits`, `libraries` and `gpus` are the checks, `self_test` runs the ranks.

#![allow(clippy::disallowed_methods, reason = "examines this machine")]

mod gpus;
mod interfaces;
mod libraries;
mod limits;
mod report;
mod self_test;

use clap::Args;
use hexagram::physical::bootstrap::meets_through_store;
use hexagram::{Placement, TransportKind};
use report::CheckReport;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
✓ marks a passed check, - information, and ✗ a problem with its remedy.

Exit code: 0 if every check passed; 141 if the reader closed the output; otherwise 1.";

/// Check this machine for hexagram, and run an all-reduce of two processes over each transport.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CheckOptions {
    /// Run as a rank of the self-test over this transport; `check` starts these ranks itself
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    self_test: Option<TransportKind>,
}

impl CheckOptions {
    /// Runs every check, also after a failure.
    pub(crate) fn execute(self) -> ExitCode {
        if let Some(transport) = self.self_test {
            return self_test::rank(transport);
        }
        let mut report = CheckReport::default();
        report.title(&format!("hexagram {} on {}", env!("CARGO_PKG_VERSION"), limits::system()));
        let placement = launcher(&mut report);
        interfaces::check(&mut report, placement.as_ref());
        limits::memory(&mut report);
        limits::limits(&mut report);
        limits::cores(&mut report);
        libraries::check(&mut report);
        gpus::check(&mut report);
        self_test::check(&mut report);
        report.finish()
    }
}

/// Reports the launcher that has started this process, if any.
fn launcher(report: &mut CheckReport) -> Option<Placement> {
    report.title("launcher");
    if let Ok(Some((rank, size, store))) = meets_through_store() {
        report.good(&format!("rank {rank} of {size}, on several hosts; the ranks meet through {store}"));
        return None;
    }
    match Placement::from_env() {
        Ok(None) => report.note("no launcher variables are set: programs here start their own ranks"),
        Ok(Some(placement)) => {
            let Placement { rank, size, local_rank, local_size, rendezvous, launcher, .. } = &placement;
            report.good(&format!(
                "{launcher} variables: rank {rank} of {size}, {local_rank} of {local_size} on this host; \
                 rendezvous at {rendezvous}"
            ));
            return Some(placement);
        }
        Err(error) => report.bad(&error.to_string()),
    }
    None
}
