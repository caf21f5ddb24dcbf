//! The subjects that Dynamo's workers speak on.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;

/// Where the workers of a namespace, or of one endpoint in it, tell their load.
///
/// ```
/// use actix_kv_metrics_nats::dynamo::DynamoSubjects;
///
/// let all = DynamoSubjects::namespace("prod")?;
/// assert_eq!(all.heard(), ["namespace.prod.kv_metrics", "namespace.prod.component.*.endpoint.*.kv_metrics"]);
/// let one = DynamoSubjects::endpoint("prod", "backend", "generate")?;
/// assert_eq!(one.heard(), ["namespace.prod.kv_metrics", "namespace.prod.component.backend.endpoint.generate.kv_metrics"]);
/// # Ok::<(), actix_kv_metrics_nats::dynamo::DynamoSubjectError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DynamoSubjects {
    namespace: String,
    /// Component and endpoint.
    endpoint: Option<[String; 2]>,
}

/// A name that cannot be part of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the {part} has {bytes} bytes, but must have 1 to {LONGEST}")]
#[non_exhaustive]
pub struct DynamoSubjectError {
    /// `namespace`, `component` or `endpoint`.
    pub part: &'static str,
    /// How long it is.
    pub bytes: usize,
}

impl DynamoSubjects {
    /// Of every endpoint in a namespace.
    ///
    /// # Errors
    ///
    /// [`DynamoSubjectError`] if it is empty or has more than 256 bytes. Any other name can be: what a subject may not hold is
    /// percent-encoded, as Dynamo does it.
    pub fn namespace(namespace: &str) -> Result<Self, DynamoSubjectError> {
        Ok(Self {
            namespace: token("namespace", namespace)?,
            endpoint: None,
        })
    }

    /// Of one endpoint. Before Dynamo 1.4 subjects do not name it: there, all of the namespace are heard.
    ///
    /// # Errors
    ///
    /// [`DynamoSubjectError`] if one of them is empty or has more than 256 bytes.
    pub fn endpoint(
        namespace: &str,
        component: &str,
        endpoint: &str,
    ) -> Result<Self, DynamoSubjectError> {
        Ok(Self {
            namespace: token("namespace", namespace)?,
            endpoint: Some([token("component", component)?, token("endpoint", endpoint)?]),
        })
    }

    /// What to subscribe to, to hear every version.
    pub fn heard(&self) -> [String; 2] {
        let [component, endpoint] = match &self.endpoint {
            Some([component, endpoint]) => [component.as_str(), endpoint],
            None => ["*"; 2],
        };
        [self.of_namespace(), self.of(component, endpoint)]
    }

    /// Where workers speak before Dynamo 1.4.
    pub fn of_namespace(&self) -> String {
        format!("namespace.{}.kv_metrics", self.namespace)
    }

    /// Where workers of the endpoint speak since Dynamo 1.4; `None` if no endpoint was named.
    pub fn of_endpoint(&self) -> Option<String> {
        let [component, endpoint] = self.endpoint.as_ref()?;
        Some(self.of(component, endpoint))
    }

    fn of(&self, component: &str, endpoint: &str) -> String {
        let namespace = &self.namespace;
        format!("namespace.{namespace}.component.{component}.endpoint.{endpoint}.kv_metrics")
    }
}

fn token(part: &'static str, name: &str) -> Result<String, DynamoSubjectError> {
    if name.is_empty() || name.len() > LONGEST {
        let bytes = name.len();
        return Err(DynamoSubjectError { part, bytes });
    }
    Ok(utf8_percent_encode(name, ENCODED).to_string())
}

/// All but `[A-Za-z0-9_-]`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// Servers take 4,096 bytes for a subject and what goes with it; encoded, three names of this length are 2,304.
const LONGEST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_so_that_it_is_one_token() {
        let subjects = DynamoSubjects::endpoint("a.b*", "c >", "d-_9\u{e9}").unwrap();
        assert_eq!(subjects.of_namespace(), "namespace.a%2Eb%2A.kv_metrics");
        let newest = "namespace.a%2Eb%2A.component.c%20%3E.endpoint.d-_9%C3%A9.kv_metrics";
        assert_eq!(subjects.of_endpoint().unwrap(), newest);
        assert_eq!(subjects.heard(), [subjects.of_namespace(), newest.into()]);
        assert_eq!(DynamoSubjects::namespace("a").unwrap().of_endpoint(), None);
    }

    #[test]
    fn a_name_has_1_to_256_bytes() {
        let longest = "x".repeat(256);
        assert!(DynamoSubjects::endpoint(&longest, &longest, &longest).is_ok());
        let longer = "x".repeat(257);
        for [namespace, component, endpoint] in
            [["", "c", "e"], ["n", &longer, "e"], ["n", "c", ""]]
        {
            assert!(DynamoSubjects::endpoint(namespace, component, endpoint).is_err());
        }
        let error = DynamoSubjects::namespace("").unwrap_err().to_string();
        assert_eq!(error, "the namespace has 0 bytes, but must have 1 to 256");
    }
}
