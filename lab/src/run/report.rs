//! Report of a run at its end: a few lines for people, or one line of JSON.

use super::SamplerKind;
use super::work::StepWork;
use crate::program::console::bytes;
use serde_json::{Map, Value, json};

/// The result of a run, the same on all ranks.
#[derive(Debug, Clone)]
pub(super) struct RunReport {
    /// Number of ranks.
    pub(super) ranks: usize,
    /// Short spelling of the algorithm: its name, and the options that are not its defaults.
    pub(super) algorithm: String,
    /// Its trigram, one character.
    pub(super) trigram: char,
    /// Name of the model.
    pub(super) model: String,
    /// Chosen device: `auto` may be either.
    pub(super) device: String,
    /// Name of the optimizer.
    pub(super) optimizer: String,
    /// γ.
    pub(super) learning_rate: f64,
    /// Name of the transport.
    pub(super) transport: String,
    /// Passes over the training data.
    pub(super) epochs: u64,
    /// Share of the held-out images that the exact average of the replicas recognizes.
    pub(super) test_accuracy: f64,
    /// Mean training loss of the last epoch.
    pub(super) final_loss: f64,
    /// Samples per second of all ranks together, training only.
    pub(super) samples_per_s: f64,
    /// Steps per second of each rank, training only.
    pub(super) steps_per_s: f64,
    /// Payload of all messages that all ranks sent in the training steps, equal on every transport. Traffic of
    /// evaluations does not count.
    pub(super) bytes_sent: u64,
    /// The same for `gradient-allreduce` with as many steps of this model.
    pub(super) bytes_of_gradient_all_reduce: u64,
    /// Time in which training threads waited for communication ÷ time of the training steps.
    pub(super) comm_fraction: f64,
    /// True if all replicas were bit-identical at the end.
    pub(super) replicas_identical: bool,
    /// Checkpoints that could not be saved.
    pub(super) failed_saves: u64,
    /// Sampler and work of each rank, where samples cost differently.
    pub(super) work: Option<(SamplerKind, StepWork)>,
    /// From launch to result, in seconds.
    pub(super) wall_s: f64,
}

impl RunReport {
    /// Returns every field, with its name.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let mut fields = vec![
            ("ranks", json!(self.ranks)),
            ("algorithm", json!(self.algorithm)),
            ("trigram", json!(self.trigram)),
            ("model", json!(self.model)),
            ("device", json!(self.device)),
            ("optimizer", json!(self.optimizer)),
            ("learning_rate", json!(self.learning_rate)),
            ("transport", json!(self.transport)),
            ("epochs", json!(self.epochs)),
            ("test_accuracy", json!(self.test_accuracy)),
            ("final_loss", json!(self.final_loss)),
            ("samples_per_s", json!(self.samples_per_s)),
            ("steps_per_s", json!(self.steps_per_s)),
            ("bytes_sent", json!(self.bytes_sent)),
            ("bytes_of_gradient_all_reduce", json!(self.bytes_of_gradient_all_reduce)),
            ("comm_fraction", json!(self.comm_fraction)),
            ("replicas_identical", json!(self.replicas_identical)),
            ("failed_saves", json!(self.failed_saves)),
            ("wall_s", json!(self.wall_s)),
        ];
        if let Some((sampler, work)) = &self.work {
            fields.push(("sampler", json!(sampler.to_string())));
            fields.extend(work.fields());
        }
        fields
    }

    /// Returns one JSON object.
    pub(super) fn json(&self) -> Value {
        self.fields().into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
    }

    /// Returns a few lines for people.
    pub(super) fn text(&self) -> String {
        let replicas = match (self.ranks, self.replicas_identical) {
            (1, _) => "one replica".to_owned(),
            (ranks, true) => format!("all {ranks} replicas are bit-identical"),
            (ranks, false) => format!("the {ranks} replicas differ (evaluated: their exact average)"),
        };
        format!(
            "test accuracy {:.2} %, loss {:.4}; {replicas}\n\
             {} ranks over {}, {}: {:.0} samples/s, {:.1} % of the time in communication, {:.1} s in all\n\
             {} sent{}{}",
            100.0 * self.test_accuracy,
            self.final_loss,
            self.ranks,
            self.transport,
            self.algorithm,
            self.samples_per_s,
            100.0 * self.comm_fraction,
            self.wall_s,
            bytes(self.bytes_sent),
            self.compared(),
            self.work.as_ref().map(|(name, work)| format!("\n{name}: {}", work.text())).unwrap_or_default()
        )
    }

    fn compared(&self) -> String {
        match self.bytes_of_gradient_all_reduce {
            0 => String::new(),
            other => format!(
                ", {:.1} % of the {} of gradient-allreduce",
                100.0 * self.bytes_sent as f64 / other as f64,
                bytes(other)
            ),
        }
    }
}
