//! The role of a tensor of the model, by its name: a parameter, a buffer, or local to each rank.

use crate::error::{Error, Result};

/// Names of buffers in candle layers.
const STATISTICS: [&str; 2] = ["running_mean", "running_var"];

/// Role of a tensor in the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Trained on all ranks together.
    Parameter,
    /// Written by the forward pass, and synchronized between ranks.
    Buffer,
    /// Local to each rank.
    Ignored,
}

/// Names from the program.
#[derive(Debug, Clone)]
pub(crate) struct TensorRoles {
    pub(crate) buffers: Vec<String>,
    pub(crate) ignored: Vec<String>,
}

/// Returns true if a name is that of the tensor, or the last parts of it.
fn names(name: &str, tensor: &str) -> bool {
    tensor.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl TensorRoles {
    /// Returns the role of a tensor.
    pub(crate) fn of(&self, tensor: &str) -> Role {
        let is_in = |list: &[String]| list.iter().any(|name| names(name, tensor));
        if is_in(&self.ignored) {
            Role::Ignored
        } else if is_in(&self.buffers) || STATISTICS.iter().any(|name| names(name, tensor)) {
            Role::Buffer
        } else {
            Role::Parameter
        }
    }

    /// Fails if the program names a tensor that the model does not have.
    pub(crate) fn check<'a>(&self, tensors: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let mut all = self.buffers.iter().chain(&self.ignored);
        match all.find(|name| !tensors.clone().any(|tensor| names(name, tensor))) {
            None => Ok(()),
            Some(name) => {
                let what = format!("no tensor of the model is named `{name}`");
                Err(Error::usage(what, "name buffers and ignored tensors as the VarBuilder does"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_whole_or_the_last_parts() {
        let roles = TensorRoles { buffers: vec!["mean".into()], ignored: vec!["head.bias".into()] };
        let roles_of = |names: [&str; 3]| names.map(|name| roles.of(name));
        assert_eq!(roles_of(["mean", "a.mean", "a.running_mean"]), [Role::Buffer; 3]);
        assert_eq!(roles_of(["a.norm_mean", "mean.weight", "a.head_bias"]), [Role::Parameter; 3]);
        assert_eq!(roles_of(["head.bias", "a.head.bias", "a.b.head.bias"]), [Role::Ignored; 3]);
        assert!(roles.check(["a.mean", "head.bias"].into_iter()).is_ok());
        let refused = roles.check(["a.mean", "bias"].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("`head.bias`"), "{refused}");
    }
}
