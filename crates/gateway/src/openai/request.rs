use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ApiError;

/// What a gateway reads of a request's body.
#[derive(Debug, Deserialize)]
pub(crate) struct Request<'a> {
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    messages: Option<&'a RawValue>,
    /// They stand before the messages in what the engine computes.
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    /// Prompts of different salts share nothing.
    #[serde(borrow, default)]
    cache_salt: Option<Cow<'a, str>>,
}

/// What an engine has to compute before the first token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Prompt<'a> {
    Text(Cow<'a, str>),
    Tokens(Vec<u32>),
}

/// A prompt as it may stand in a body.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Batch(Vec<Vec<u32>>),
}

impl<'a> Request<'a> {
    /// # Errors
    ///
    /// [`ApiError::BadRequest`], if it is not a JSON object whose fields are what OpenAI's interface says.
    pub(crate) fn of(body: &'a [u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body).map_err(|error| {
            // Its text names the place, and values only of fields that are read here.
            ApiError::BadRequest(format!("the body can't be read: {error}").into())
        })
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// What two requests must have in common before the first word of their prompts to share anything.
    pub(crate) fn before(&self) -> (&str, &str) {
        let tools = self.tools.map_or("", RawValue::get);
        (tools, self.cache_salt.as_deref().unwrap_or(""))
    }

    /// The prompts, several if the request is a batch.
    ///
    /// Messages count as the JSON they stand in, since only the engine knows its template: that is longer by their frames, and of
    /// two conversations that begin alike the JSON does so, too.
    ///
    /// # Errors
    ///
    /// [`ApiError::BadRequest`], if there is none, or both, or it is of another shape.
    pub(crate) fn prompts(&self) -> Result<Vec<Prompt<'a>>, ApiError> {
        const ONE: &str = "the body must have either `prompt` or `messages`";
        match (self.prompt, self.messages) {
            (Some(prompt), None) => {
                let prompts = serde_json::from_str(prompt.get()).map_err(|_| {
                    ApiError::BadRequest(
                        "`prompt` must be a string, a list of strings, of token ids, or of lists of token ids".into(),
                    )
                })?;
                Ok(match prompts {
                    Prompts::Text(text) => vec![Prompt::Text(text)],
                    Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
                    Prompts::Texts(texts) => {
                        let texts = texts.into_iter().map(Cow::Owned);
                        texts.map(Prompt::Text).collect()
                    }
                    Prompts::Batch(batch) => batch.into_iter().map(Prompt::Tokens).collect(),
                })
            }
            (None, Some(messages)) => {
                let messages = messages.get();
                if !messages.starts_with('[') {
                    return Err(ApiError::BadRequest("`messages` must be a list".into()));
                }
                // Without the end of the list, which the next turn has elsewhere.
                let open = messages.trim_end_matches(']').trim_end();
                Ok(vec![Prompt::Text(Cow::Borrowed(open))])
            }
            (None, None) | (Some(_), Some(_)) => Err(ApiError::BadRequest(ONE.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(body: &str) -> Result<Vec<Prompt<'_>>, String> {
        let request = Request::of(body.as_bytes()).map_err(|error| error.to_string())?;
        request.prompts().map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_several_of_either() {
        let text = |text| Prompt::Text(Cow::Borrowed(text));
        for (body, read) in [
            (r#"{"prompt": "a\nb"}"#, vec![text("a\nb")]),
            (r#"{"prompt": ["a", "b"]}"#, vec![text("a"), text("b")]),
            (r#"{"prompt": [1, 2]}"#, vec![Prompt::Tokens(vec![1, 2])]),
            (
                r#"{"prompt": [[1], [2, 3]]}"#,
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
            ),
            (r#"{"prompt": ""}"#, vec![text("")]),
        ] {
            assert_eq!(prompts(body), Ok(read), "{body}");
        }
    }

    #[test]
    fn the_messages_of_a_turn_begin_those_of_the_next() {
        let first = prompts(r#"{"messages": [{"role": "user", "content": "hi"} ] }"#).unwrap();
        let next = prompts(
            r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#,
        );
        let (Prompt::Text(first), Prompt::Text(next)) = (&first[0], &next.unwrap()[0]) else {
            panic!("text");
        };
        assert_eq!(first, r#"[{"role": "user", "content": "hi"}"#);
        assert!(next.starts_with(first.as_ref()));
    }

    #[test]
    fn what_is_no_request_is_refused_by_what_is_wrong_with_it() {
        const EITHER: &str = "the body must have either `prompt` or `messages`";
        const SHAPE: &str =
            "`prompt` must be a string, a list of strings, of token ids, or of lists of token ids";
        for (body, error) in [
            ("{}", EITHER),
            (r#"{"prompt": "a", "messages": []}"#, EITHER),
            (r#"{"prompt": 7}"#, SHAPE),
            (r#"{"prompt": [1, "a"]}"#, SHAPE),
            (r#"{"prompt": [-1]}"#, SHAPE),
            (r#"{"messages": "hi"}"#, "`messages` must be a list"),
            (
                "[",
                "the body can't be read: EOF while parsing a list at line 1 column 1",
            ),
            (
                r#"{"model": 7}"#,
                "the body can't be read: invalid type: integer `7`, expected a string at line 1 column 11",
            ),
        ] {
            assert_eq!(prompts(body), Err(error.to_owned()), "{body}");
        }
        // As deep as it likes.
        let deep = format!("{{\"messages\": {}", "[".repeat(1 << 20));
        assert!(prompts(&deep).is_err());
    }
}
