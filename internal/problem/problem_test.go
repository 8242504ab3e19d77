package problem_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/problem"
)

func TestDetailsAreWrittenWithoutZeroMembers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		details problem.Details
		want    string
	}{
		{"nothing", problem.Details{}, `{}`},
		{
			"everything",
			problem.Details{
				Type: "https://example.com/t", Title: "T", Status: 409, Detail: "D", Instance: "/i", Code: problem.NotKept,
				Members: map[string]any{"original_status": 201},
			},
			`{"type":"https://example.com/t","title":"T","status":409,"detail":"D","instance":"/i","code":"RESPONSE_NOT_KEPT","original_status":201}`,
		},
		{
			"extension members do not hide the others",
			problem.Details{Title: "T", Members: map[string]any{"title": "x", "type": "x", "detail": "x", "instance": "x", "code": "x", "status": 1}},
			`{"title":"T"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(tt.details)
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(got))
		})
	}
}

func TestDetailsThatAreNoJSONAreAnError(t *testing.T) {
	t.Parallel()
	_, err := json.Marshal(problem.Details{Members: map[string]any{"x": math.NaN()}})
	require.Error(t, err)
}

func TestParseReadsProblemDetails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, contentType, body string
		want                    problem.Details
	}{
		{"no member", "application/problem+json", `{}`, problem.Details{}},
		{"parameters and capitals in the type", "Application/Problem+JSON; charset=UTF-8", `{"title":"T"}`, problem.Details{Title: "T"}},
		{
			"every member", "application/problem+json",
			`{"type":"https://example.com/t","title":"T","status":422,"detail":"D","instance":"/i","code":"IDEMPOTENCY_KEY_REUSE"}`,
			problem.Details{Type: "https://example.com/t", Title: "T", Status: 422, Detail: "D", Instance: "/i", Code: problem.KeyReuse},
		},
		{
			"extension members", "application/problem+json", `{"status":403,"balance":30,"accounts":["/a","/b"]}`,
			problem.Details{Status: 403, Members: map[string]any{"balance": 30.0, "accounts": []any{"/a", "/b"}}},
		},
		{
			"members of the wrong type are ignored", "application/problem+json",
			`{"type":1,"title":null,"status":"404","detail":{},"instance":[],"code":true}`,
			problem.Details{},
		},
		{"a status with a fraction is ignored", "application/problem+json", `{"status":404.5}`, problem.Details{}},
		{"a status out of range is ignored", "application/problem+json", `{"status":1000}`, problem.Details{}},
		{"a status below the range is ignored", "application/problem+json", `{"status":99}`, problem.Details{}},
		{"a huge status is ignored", "application/problem+json", `{"status":1e300}`, problem.Details{}},
		{"a status in another spelling", "application/problem+json", `{"status":4.04e2}`, problem.Details{Status: 404}},
		{"names are case-sensitive", "application/problem+json", `{"Title":"T"}`, problem.Details{Members: map[string]any{"Title": "T"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := problem.Parse(tt.contentType, []byte(tt.body))
			require.NotNil(t, got)
			require.Equal(t, tt.want, *got)
		})
	}
}

func TestParseReturnsNilForAnythingElse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, contentType, body string }{
		{"no media type", "", `{"title":"T"}`},
		{"another media type", "application/json", `{"title":"T"}`},
		{"a media type that is none", "application/problem+json; =", `{"title":"T"}`},
		{"an empty body", "application/problem+json", ""},
		{"HTML", "application/problem+json", "<html>"},
		{"null", "application/problem+json", "null"},
		{"an array", "application/problem+json", `[{"title":"T"}]`},
		{"a string", "application/problem+json", `"T"`},
		{"a cut body", "application/problem+json", `{"title":"T"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Nil(t, problem.Parse(tt.contentType, []byte(tt.body)))
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("application/problem+json", []byte(`{"type":"t","title":"T","status":409,"detail":"D","instance":"/i","code":"C","x":[1]}`))
	f.Add("application/problem+json; charset=utf-8", []byte(`{"status":"409","Title":null}`))
	f.Add("text/html", []byte("<html>"))
	f.Add("application/problem+json", []byte(`{"status":1e400}`))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		details := problem.Parse(contentType, body)
		if details == nil {
			return
		}
		require.True(t, json.Valid(body))
		require.True(t, details.Status == 0 || details.Status >= 100 && details.Status <= 999)
		written, err := json.Marshal(details)
		require.NoError(t, err)
		require.Equal(t, details, problem.Parse(problem.ContentType, written), "reads back as it was")
	})
}
