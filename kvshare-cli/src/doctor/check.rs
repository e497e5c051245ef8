//! One line of the doctor's.

/// What one look at the machine found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, in few words.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found, in words.
    pub found: String,
    /// What to do about it, where there is something to do.
    pub remedy: Option<String>,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can be used as it is.
    Good,
    /// It is there, and could do more.
    Limited,
    /// It is not there; only who wants it misses it.
    Absent,
    /// It should work and does not.
    Broken,
}

impl State {
    /// One word for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Limited => "limited",
            Self::Absent => "absent",
            Self::Broken => "broken",
        }
    }
}

impl Check {
    pub(super) fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), remedy: None }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
