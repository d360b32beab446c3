//! The attribute `#[trial]`. It is used as `lessor_kit::trial`.

use proc_macro::{TokenStream, TokenTree};

/// Makes an `async fn` without arguments a test of the program that it is linked into.
///
/// In parentheses: `long` starts it before all others, `ignored` runs it only with `--ignored`, and `not_by_chart` leaves it
/// out where end-to-end tests run with the rights of the chart.
#[proc_macro_attribute]
pub fn trial(options: TokenStream, function: TokenStream) -> TokenStream {
    let mut tokens = function.clone().into_iter();
    let name = tokens.by_ref().skip_while(|token| !is_word(token, "fn")).nth(1);
    let Some(TokenTree::Ident(name)) = name else {
        return error("`#[trial]` belongs before an async function");
    };
    let mut settings = String::new();
    for option in options {
        match option {
            TokenTree::Ident(option) => settings.push_str(&format!(".{option}()")),
            TokenTree::Punct(comma) if comma.as_char() == ',' => {}
            other => return error(&format!("unknown option {other}")),
        }
    }
    let registration = format!(
        "::lessor_kit::trials::submit! {{
            ::lessor_kit::trials::Function::new(
                ::core::module_path!(), \"{name}\", ::core::line!(), || ::std::boxed::Box::pin({name}()),
            ){settings}
        }}"
    );
    let registration: TokenStream = registration.parse().unwrap_or_default();
    function.into_iter().chain(registration).collect()
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(found) if found.to_string() == word)
}

fn error(message: &str) -> TokenStream {
    format!("::core::compile_error!({message:?});").parse().unwrap_or_default()
}
