//! Optimizers that fit an algorithm.

/// Optimizers that may step with what an algorithm leaves in the gradients. Each reason completes "does not fit, since
/// …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Optimizers {
    /// All optimizers.
    #[default]
    Any,
    /// Plain SGD, with weight decay or without, for this reason. The decay is decoupled then, as AdamW's.
    Sgd(&'static str),
    /// Plain SGD without weight decay, and with one learning rate for all parameters, for this reason.
    BareSgd(&'static str),
    /// One optimizer, with any options, for a reason: an algorithm that is defined with it. The engine steps with it
    /// where it is given none.
    ///
    /// ```
    /// use hexagram::algorithms::{Muon, Optimizers, Sgd};
    ///
    /// let inner = Optimizers::Named { optimizer: "muon(weight_decay=0)", reason: "its outer rate is Muon's" };
    /// assert!(inner.fit(&Muon::default()) && !inner.fit(&Sgd::default()));
    /// ```
    Named {
        /// Spelling of the optimizer that is stepped with by default. Another fits if it has the same name, which is
        /// the spelling's first word.
        optimizer: &'static str,
        /// Reason that no other fits.
        reason: &'static str,
    },
}

/// Form of an optimizer's step, as far as an algorithm asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepForm {
    /// x ← x − γ g: plain SGD.
    Plain,
    /// x ← x − γ (g + λ x): plain SGD with weight decay.
    Decaying,
    /// Any other, such as one with momentum, or with a scale for each element.
    #[default]
    Other,
}

impl Optimizers {
    /// Returns true if any optimizer whose steps have this form is among them: what is known of a framework's own.
    pub fn include(self, form: StepForm) -> bool {
        match self {
            Optimizers::Any => true,
            Optimizers::Sgd(_) => form != StepForm::Other,
            Optimizers::BareSgd(_) => form == StepForm::Plain,
            Optimizers::Named { .. } => false,
        }
    }

    /// Returns the spelling of the optimizer that the engine steps with where it is given none.
    pub fn by_default(self) -> Option<&'static str> {
        match self {
            Optimizers::Named { optimizer, .. } => Some(optimizer),
            Optimizers::Any | Optimizers::Sgd(_) | Optimizers::BareSgd(_) => None,
        }
    }
}
