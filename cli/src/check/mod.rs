//! `hexagram check`: what this machine has for hexagram, what it lacks, and whether two ranks can speak here.
//!
//! `report` is the form, `interfaces`, `limits`, `libraries` and `gpus` are what is looked at, `self_test` is the proof.

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
use report::Report;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
✓ begins what works, - what is for information, and ✗ what needs repair, with the way to repair it.

Exit code: 0 if nothing has to be mended, 141 if the reader of the report has closed it, else 1.";

/// Check what this machine has for hexagram, and run an all-reduce of two processes over each transport.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// Be a rank of the self-test over this transport; `check` starts such ranks itself
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    self_test: Option<TransportKind>,
}

impl Check {
    /// Looks at everything, whatever fails on the way.
    pub(crate) fn execute(self) -> ExitCode {
        if let Some(transport) = self.self_test {
            return self_test::rank(transport);
        }
        let mut report = Report::default();
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

/// Reports which launcher has started this process, if any has.
fn launcher(report: &mut Report) -> Option<Placement> {
    report.title("launcher");
    if let Ok(Some((rank, size, store))) = meets_through_store() {
        report.good(&format!("rank {rank} of {size}, on several hosts; the ranks meet through {store}"));
        return None;
    }
    match Placement::from_env() {
        Ok(None) => report.note("no launcher's variables are set: programs here start their own ranks"),
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
