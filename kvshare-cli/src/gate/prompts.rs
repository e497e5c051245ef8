//! Prompts of exact lengths that end in the same question.

use crate::cycle::{DecoderClient, DecoderError};

/// Three stories and a question about one of them.
const STORIES: &str = include_str!("../demo/stories.txt");

/// How many tokens at the beginning are kept: what a model's template begins with.
const HEAD: usize = 8;

/// A prompt of each length: the stories by the model's template, over and over, with as much cut out behind the head as is
/// too much. The question is the last one's.
pub(super) async fn prompts(decoder: &DecoderClient, lengths: &[usize]) -> Result<Vec<Vec<i32>>, DecoderError> {
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let mut repetitions = 1;
    let tokens = loop {
        let text = vec![STORIES; repetitions].join("\n\n");
        let tokens = decoder.tokenize(&decoder.apply_template(&text).await?).await?;
        if tokens.len() >= longest {
            break tokens;
        }
        repetitions = repetitions * longest / tokens.len().max(1) + 1;
    };
    Ok(lengths.iter().map(|length| cut(&tokens, *length)).collect())
}

/// `length` of the tokens: the head, and then the last ones.
fn cut(tokens: &[i32], length: usize) -> Vec<i32> {
    let head = HEAD.min(length / 2);
    [&tokens[..head], &tokens[tokens.len() - (length - head)..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_its_length_its_head_and_its_end() {
        let tokens: Vec<i32> = (0..100).collect();
        assert_eq!(cut(&tokens, 2), [0, 99]);
        assert_eq!(cut(&tokens, 5), [0, 1, 97, 98, 99]);
        assert_eq!(cut(&tokens, 100), tokens);
        let cut = cut(&tokens, 50);
        assert_eq!((cut.len(), cut[7], cut[8], cut[49]), (50, 7, 58, 99));
    }
}
