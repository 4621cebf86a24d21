//! Optimizers that fit an algorithm. Open this if what your algorithm leaves in the gradients is not a gradient, or for an
//! optimizer of your own that is to follow such an algorithm.

/// Optimizers that may step with what an algorithm leaves in the gradients. Each reason completes "does not fit, since …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Optimizers {
    /// All optimizers.
    #[default]
    Any,
    /// Plain SGD, with weight decay or without, for this reason. The decay is decoupled then, as AdamW's.
    Sgd(&'static str),
    /// Plain SGD without weight decay, and with one learning rate for all parameters, for this reason.
    BareSgd(&'static str),
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
    /// Returns true if an optimizer whose steps have this form is among them.
    pub fn include(self, form: StepForm) -> bool {
        match self {
            Optimizers::Any => true,
            Optimizers::Sgd(_) => form != StepForm::Other,
            Optimizers::BareSgd(_) => form == StepForm::Plain,
        }
    }
}
