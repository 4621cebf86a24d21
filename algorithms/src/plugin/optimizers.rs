//! Optimizers that fit an algorithm.

/// Optimizers that can step with the gradients that an algorithm leaves. Each reason completes "does not fit, since …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Optimizers {
    /// All optimizers.
    #[default]
    Any,
    /// Plain SGD, with or without weight decay, for this reason. The decay is decoupled then, as in AdamW.
    Sgd(&'static str),
    /// Plain SGD without weight decay, and with one learning rate for all parameters, for this reason.
    BareSgd(&'static str),
    /// One optimizer, with any options, for an algorithm that is defined with it. The engine uses it by default.
    ///
    /// ```
    /// use hexagram::algorithms::{Muon, Optimizers, Sgd};
    ///
    /// let inner = Optimizers::Named { optimizer: "muon(weight_decay=0)", reason: "its outer rate is Muon's" };
    /// assert!(inner.fit(&Muon::default()) && !inner.fit(&Sgd::default()));
    /// ```
    Named {
        /// Spelling of the default optimizer. Others fit if they have the same name, which is the first word of the
        /// spelling.
        optimizer: &'static str,
        /// Reason why no other fits.
        reason: &'static str,
    },
}

/// Form of an optimizer step, as far as algorithms depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepForm {
    /// x ← x − γ g: plain SGD.
    Plain,
    /// x ← x − γ (g + λ x): plain SGD with weight decay.
    Decaying,
    /// Any other, such as one with momentum, or with a scale per element.
    #[default]
    Other,
}

impl Optimizers {
    /// Returns true if every optimizer whose steps have this form fits. Of an optimizer of a framework, only this form
    /// is known.
    pub fn include(self, form: StepForm) -> bool {
        match self {
            Optimizers::Any => true,
            Optimizers::Sgd(_) => form != StepForm::Other,
            Optimizers::BareSgd(_) => form == StepForm::Plain,
            Optimizers::Named { .. } => false,
        }
    }

    /// Returns the spelling of the optimizer that the engine uses by default.
    pub fn by_default(self) -> Option<&'static str> {
        match self {
            Optimizers::Named { optimizer, .. } => Some(optimizer),
            Optimizers::Any | Optimizers::Sgd(_) | Optimizers::BareSgd(_) => None,
        }
    }
}
