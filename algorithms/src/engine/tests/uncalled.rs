//! Hooks that would never be called: refused at the start, with their names.

use super::*;
use crate::plugin::Needs;

/// Counts steps in the hook after them; `parameters` is true if it requests the parameters that this hook needs.
#[derive(Debug, Clone)]
struct AfterStep {
    parameters: bool,
}

impl Algorithm for AfterStep {
    type State = ();

    fn about(&self) -> About {
        About::new("after-step", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { parameters: self.parameters, ..Needs::default() })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn after_step(&self, _: &Context, (): &mut (), _: &mut Bucket) -> Result<()> {
        Ok(())
    }
}

/// Has a hook before the forward pass, but does not request parameters.
#[derive(Debug, Clone)]
struct BeforeForward;

impl Algorithm for BeforeForward {
    type State = ();

    fn about(&self) -> About {
        About::new("before-forward", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    fn before_forward(&self, _: &Context, (): &mut (), _: &Buffer) -> impl Future<Output = Result<()>> {
        std::future::ready(Ok(()))
    }
}

fn refusal(comm: &Communicator, algorithm: impl Into<AnyAlgorithm>) -> String {
    let made = DataParallel::new(comm, parameters(1, 1), algorithm, EngineOptions::default());
    made.err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn a_hook_that_is_never_called_is_refused_at_the_start_by_name() {
    spawn(TransportKind::Thread, 2, |comm| {
        let text = refusal(&comm, AfterStep { parameters: false });
        assert!(text.contains("after_step of after-step is never called"), "{text}");
        assert!(text.contains("request parameters"), "{text}");
        let text = refusal(&comm, BeforeForward);
        assert!(text.contains("before_forward of before-forward is never called"), "{text}");
        assert_eq!(refusal(&comm, AfterStep { parameters: true }), "");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_engine_does_not_switch_to_an_algorithm_with_a_hook_that_is_never_called() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 1), EngineOptions::default())?;
        let text = engine.switch(BeforeForward).unwrap_err().to_string();
        assert!(text.contains("before_forward of before-forward is never called"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn algorithms_of_the_registry_have_no_hook_that_is_never_called() {
    for algorithm in crate::registry::all() {
        assert_eq!(algorithm.uncalled_hook(), None, "{}", algorithm.name());
    }
}
