//! The default catalogues of options: those of the built-in codecs and graphs, which options do not depend on.

use crate::options_text::Catalogues;

impl Default for Catalogues {
    fn default() -> Self {
        Catalogues::empty().with(crate::codec::catalogue()).with(crate::decentralized::catalogue())
    }
}
