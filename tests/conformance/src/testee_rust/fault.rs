//! What the testee does wrong on purpose.

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Says that it holds a ticket when it got an error.
    SwallowsAnError,
    /// Goes on waiting when it is cancelled.
    IgnoresCancel,
    /// Answers an acquire twice.
    CompletesTwice,
    /// Keeps 53 bits of a token, as a language without 64-bit integers would.
    TruncatesTheToken,
    /// Asks again when an answer was lost.
    AcquiresAgain,
    /// Hands a grant out however late it is.
    HandsOutALateGrant,
    /// Forgets a grant that crossed a cancellation.
    DropsACrossedGrant,
    /// Leaves its connections when it is closed.
    LeaksAtClose,
    /// Turns a duration that is too long into the longest.
    SaturatesADuration,
    /// Does not release when a scope is left by an error.
    ForgetsTheScope,
}

impl Fault {
    pub(crate) const ALL: [(&str, Fault); 10] = [
        ("swallows-an-error", Fault::SwallowsAnError),
        ("ignores-cancel", Fault::IgnoresCancel),
        ("completes-twice", Fault::CompletesTwice),
        ("truncates-the-token", Fault::TruncatesTheToken),
        ("acquires-again", Fault::AcquiresAgain),
        ("hands-out-a-late-grant", Fault::HandsOutALateGrant),
        ("drops-a-crossed-grant", Fault::DropsACrossedGrant),
        ("leaks-at-close", Fault::LeaksAtClose),
        ("saturates-a-duration", Fault::SaturatesADuration),
        ("forgets-the-scope", Fault::ForgetsTheScope),
    ];

    pub(crate) fn named(name: &str) -> Self {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no fault {name:?}")).1
    }
}
