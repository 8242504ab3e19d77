package admin_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser is a headless Chromium, spoken to over a pipe in the DevTools protocol.
type browser struct {
	w io.WriteCloser

	mu      sync.Mutex
	calls   int
	replies map[int]chan message
	tabs    map[string]*tab // by session
}

// tab is one of its pages.
type tab struct {
	*browser

	t        *testing.T
	session  string
	loaded   chan struct{} // gets a token for every page that was loaded
	troubles []string      // what the console, the security policy and scripts complained of; guarded by mu
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// openBrowser starts Chromium, which ends with the test, or with this process: it
// does when its pipe is closed.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		path, err = exec.LookPath("google-chrome")
	}
	require.NoError(t, err, "Chromium is missing; install it with: apt-get install --no-install-recommends chromium")
	folder, err := os.MkdirTemp("", "idem.") //nolint:usetesting // what remains of a browser may write to it a little longer
	require.NoError(t, err)
	cmd := exec.Command(path, "--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--hide-scrollbars", "--user-data-dir="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	toBrowser, w, err := os.Pipe()
	require.NoError(t, err)
	r, fromBrowser, err := os.Pipe()
	require.NoError(t, err)
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // its descriptors 3 and 4
	require.NoError(t, cmd.Start())
	toBrowser.Close()
	fromBrowser.Close()
	b := &browser{w: w, replies: make(map[int]chan message), tabs: make(map[string]*tab)}
	go b.listen(r)
	t.Cleanup(func() {
		w.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return os.RemoveAll(folder) == nil }, 10*time.Second, 10*time.Millisecond)
	})
	return b
}

// open opens a page in a tab of its own.
func (b *browser) open(t *testing.T, url string) *tab {
	t.Helper()
	tb := &tab{browser: b, t: t, loaded: make(chan struct{}, 100)}
	var target struct {
		ID string `json:"targetId"`
	}
	tb.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		Session string `json:"sessionId"`
	}
	tb.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	b.mu.Lock()
	tb.session = attached.Session
	b.tabs[tb.session] = tb
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		tb.call(domain+".enable", nil, nil)
	}
	tb.call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil) // as if it were the one in front
	tb.open(url)
	return tb
}

// listen sorts what the browser says.
func (b *browser) listen(r io.Reader) {
	for messages := bufio.NewReader(r); ; {
		line, err := messages.ReadBytes(0)
		if err != nil {
			return
		}
		line = bytes.TrimSuffix(line, []byte{0})
		var m message
		if json.Unmarshal(line, &m) == nil {
			b.sort(m, string(line))
		}
	}
}

func (b *browser) sort(m message, line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tb := b.tabs[m.Session]
	switch {
	case m.Method == "":
		b.replies[m.ID] <- m
	case tb == nil:
	case m.Method == "Page.loadEventFired":
		tb.loaded <- struct{}{}
	case slices.Contains([]string{
		"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening",
	}, m.Method):
		tb.troubles = append(tb.troubles, line)
	}
}

// call calls a method of the protocol and decodes its result into result,
// unless that is nil.
func (b *tab) call(method string, params, result any) {
	b.t.Helper()
	reply := make(chan message, 1)
	b.mu.Lock()
	b.calls++
	m := message{ID: b.calls, Session: b.session, Method: method, Params: params}
	b.replies[m.ID] = reply
	line, err := json.Marshal(m)
	if err == nil {
		_, err = b.w.Write(append(line, 0))
	}
	b.mu.Unlock()
	require.NoError(b.t, err)
	select {
	case m := <-reply:
		require.Empty(b.t, string(m.Error), method)
		if result != nil {
			require.NoError(b.t, json.Unmarshal(m.Result, result))
		}
	case <-time.After(time.Minute):
		require.NoError(b.t, errors.New("the browser does not answer"), method)
	}
}

// open goes to a page and waits until it is there.
func (b *tab) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.waitForPage()
}

func (b *tab) waitForPage() {
	b.t.Helper()
	select {
	case <-b.loaded:
	case <-time.After(time.Minute):
		require.NoError(b.t, errors.New("the page does not load"))
	}
}

// text returns what a JavaScript expression yields.
func (b *tab) text(expression string) string {
	b.t.Helper()
	var got struct {
		Result struct {
			Value string `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "returnByValue": true}, &got)
	require.Empty(b.t, string(got.Exception), expression)
	return got.Result.Value
}

// fill types into a field of the form.
func (b *tab) fill(name, value string) {
	b.t.Helper()
	b.text(`document.querySelector("input[name=` + name + `]").select()`)
	b.call("Input.insertText", map[string]any{"text": value}, nil)
}

// pressEnter sends the form whose field was filled last, and waits for the
// answer.
func (b *tab) pressEnter() {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{
			"type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13,
		}, nil)
	}
	b.waitForPage()
}

// disableScripts has pages that are opened from now on run none of theirs.
func (b *tab) disableScripts() {
	b.t.Helper()
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
}

// screenshot returns what a window of that size shows, as PNG.
func (b *tab) screenshot(width, height int) []byte {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, nil)
	var shot struct {
		Data []byte `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	return shot.Data
}

// requireNoTrouble demands that nothing was complained of.
func (b *tab) requireNoTrouble() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.troubles)
}
