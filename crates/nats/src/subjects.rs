//! The subjects that publishers and subscribers meet on.
//!
//! | subject | who speaks | what |
//! |---|---|---|
//! | `<prefix>.pub.<id>.snapshot` | publisher `id` | parts of snapshots |
//! | `<prefix>.pub.<id>.mark` | publisher `id`, to itself | markers that acknowledge what went before them |
//! | `<prefix>.pub.<id>.alive` | publisher `id` | that it lives |
//! | `<prefix>.resync` | a subscriber, to every publisher | that everything is wanted |
//! | `<prefix>.resync.<id>` | a subscriber, to publisher `id` | the same |
//!
//! All a publisher may say stands under `<prefix>.pub.<id>.`, so that one permission keeps it from speaking for others.

use std::fmt;

use thiserror::Error;

/// Builds and reads the subjects under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

/// What a subject says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A part of a snapshot of this publisher.
    Snapshot(u64),
    /// A marker of this publisher.
    Mark(u64),
    /// This publisher lives.
    Alive(u64),
    /// Everything is wanted of every publisher.
    Resync,
    /// Everything is wanted of this publisher.
    ResyncOf(u64),
}

/// A subject that is none of these, or a prefix that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// A prefix has tokens `[A-Za-z0-9_-]+`, with a dot between two, and at most 256 bytes.
    #[error(
        "{prefix:?} is no prefix: it takes tokens of A-Z, a-z, 0-9, _ and -, with a dot between two, and at most 256 bytes"
    )]
    Prefix {
        /// What was given.
        prefix: String,
    },
    /// The subject is not under the prefix, or not one of the five.
    #[error("{subject:?} is no subject under {prefix:?}")]
    Unknown {
        /// The subject, of which at most 256 characters are kept.
        subject: String,
        /// The prefix.
        prefix: String,
    },
}

impl Subjects {
    /// Subjects under a prefix, which may have several tokens: `kv`, `cluster-1.kv`.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Prefix`] unless every token is one or more of `A-Z`, `a-z`, `0-9`, `_` and `-`, and all take at most 256
    /// bytes.
    pub fn new(prefix: impl Into<String>) -> Result<Self, SubjectError> {
        let prefix = prefix.into();
        if prefix.len() > LONGEST || !prefix.split('.').all(is_token) {
            let prefix = shortened(&prefix);
            return Err(SubjectError::Prefix { prefix });
        }
        Ok(Self { prefix })
    }

    /// What all subjects begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Where this publisher sends snapshots.
    pub fn snapshot(&self, publisher: u64) -> String {
        self.subject(Subject::Snapshot(publisher))
    }

    /// Where this publisher sends markers to itself.
    pub fn mark(&self, publisher: u64) -> String {
        self.subject(Subject::Mark(publisher))
    }

    /// Where this publisher says that it lives.
    pub fn alive(&self, publisher: u64) -> String {
        self.subject(Subject::Alive(publisher))
    }

    /// Where everything is asked of every publisher.
    pub fn resync(&self) -> String {
        self.subject(Subject::Resync)
    }

    /// Where everything is asked of this publisher.
    pub fn resync_of(&self, publisher: u64) -> String {
        self.subject(Subject::ResyncOf(publisher))
    }

    /// Matches the snapshots of every publisher, for a subscription.
    pub fn every_snapshot(&self) -> String {
        format!("{}.pub.*.snapshot", self.prefix)
    }

    /// Matches the signs of life of every publisher, for a subscription.
    pub fn every_alive(&self) -> String {
        format!("{}.pub.*.alive", self.prefix)
    }

    /// The subject that says this.
    pub fn subject(&self, subject: Subject) -> String {
        format!("{}.{subject}", self.prefix)
    }

    /// What the subject of a received message says.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Unknown`] if it is not exactly one of those built here: an id in any other form than the shortest
    /// decimal would let one publisher speak under several names.
    pub fn parse(&self, subject: &str) -> Result<Subject, SubjectError> {
        let below = subject.strip_prefix(&self.prefix);
        let parsed = below.and_then(|below| read(below.strip_prefix('.')?));
        parsed.ok_or_else(|| SubjectError::Unknown {
            subject: shortened(subject),
            prefix: self.prefix.clone(),
        })
    }
}

impl fmt::Display for Subject {
    /// Without the prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(publisher) => write!(f, "pub.{publisher}.snapshot"),
            Self::Mark(publisher) => write!(f, "pub.{publisher}.mark"),
            Self::Alive(publisher) => write!(f, "pub.{publisher}.alive"),
            Self::Resync => f.write_str("resync"),
            Self::ResyncOf(publisher) => write!(f, "resync.{publisher}"),
        }
    }
}

/// What a subject without the prefix says.
fn read(subject: &str) -> Option<Subject> {
    if let Some(below) = subject.strip_prefix("pub.") {
        let (publisher, kind) = below.split_once('.')?;
        let publisher = number(publisher)?;
        return match kind {
            "snapshot" => Some(Subject::Snapshot(publisher)),
            "mark" => Some(Subject::Mark(publisher)),
            "alive" => Some(Subject::Alive(publisher)),
            _ => None,
        };
    }
    if subject == "resync" {
        return Some(Subject::Resync);
    }
    let publisher = subject.strip_prefix("resync.")?;
    number(publisher).map(Subject::ResyncOf)
}

fn is_token(token: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !token.is_empty() && token.bytes().all(is_allowed)
}

/// The shortest decimal form of a number, and no other.
fn number(token: &str) -> Option<u64> {
    let is_shortest = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| is_shortest)
}

/// So that a hostile subject fills no log.
fn shortened(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// Subjects travel with every message; servers take 4,096 bytes for subject, reply and headers' line in all.
const LONGEST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_is_built_and_read() {
        for prefix in ["kv", "cluster-1.team_B.kv", "pub", "resync.resync"] {
            let subjects = Subjects::new(prefix).unwrap();
            for id in [0, 7, 1 << 53, u64::MAX] {
                for (built, below, subject) in [
                    (
                        subjects.snapshot(id),
                        format!("pub.{id}.snapshot"),
                        Subject::Snapshot(id),
                    ),
                    (
                        subjects.mark(id),
                        format!("pub.{id}.mark"),
                        Subject::Mark(id),
                    ),
                    (
                        subjects.alive(id),
                        format!("pub.{id}.alive"),
                        Subject::Alive(id),
                    ),
                    (subjects.resync(), "resync".to_owned(), Subject::Resync),
                    (
                        subjects.resync_of(id),
                        format!("resync.{id}"),
                        Subject::ResyncOf(id),
                    ),
                ] {
                    assert_eq!(built, format!("{prefix}.{below}"));
                    assert_eq!(subjects.parse(&built), Ok(subject));
                }
            }
        }
        let subjects = Subjects::new("a.b").unwrap();
        assert_eq!(subjects.every_snapshot(), "a.b.pub.*.snapshot");
        assert_eq!(subjects.every_alive(), "a.b.pub.*.alive");
    }

    #[test]
    fn any_other_subject_is_refused_and_named() {
        let subjects = Subjects::new("kv").unwrap();
        for subject in [
            "",
            "kv",
            "kv.",
            "kvx.resync",
            "k.resync",
            "KV.resync",
            ".kv.resync",
            "kv.resync.",
            "kv.resync.x",
            "kv.resync.1.2",
            "kv.resync.*",
            "kv.pub.1",
            "kv.pub.1.",
            "kv.pub..snapshot",
            "kv.pub.01.snapshot",
            "kv.pub.00.snapshot",
            "kv.pub.+1.snapshot",
            "kv.pub.-1.snapshot",
            "kv.pub.1 .snapshot",
            "kv.pub.\u{661}.snapshot",
            "kv.pub.18446744073709551616.snapshot",
            "kv.pub.1.snapshot.x",
            "kv.pub.1.snapshots",
            "kv.pub.1.SNAPSHOT",
            "kv.pub.*.snapshot",
            "kv.pub.>",
        ] {
            let error = subjects.parse(subject).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{subject:?} is no subject under \"kv\"")
            );
        }
        let long = "\u{e9}".repeat(1_000_000);
        let error = subjects.parse(&long).unwrap_err();
        assert!(error.to_string().len() < 1_000);
    }

    #[test]
    fn a_prefix_has_tokens_of_letters_digits_and_two_signs() {
        let longest = "x".repeat(256);
        for prefix in ["kv", "K-v_0", "a.b.c", &longest] {
            assert_eq!(Subjects::new(prefix).unwrap().prefix(), prefix);
        }
        let longer = "x".repeat(257);
        for prefix in [
            "", ".", "a.", ".a", "a..b", "a b", "a*", ">", "a.>", "\u{e9}", "a\n", &longer,
        ] {
            assert!(Subjects::new(prefix).is_err(), "{prefix:?}");
        }
        let error = Subjects::new("a b").unwrap_err().to_string();
        assert!(error.starts_with("\"a b\" is no prefix: "), "{error}");
    }
}
