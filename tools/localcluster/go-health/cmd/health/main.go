// Reads objects, one JSON document after the other, and prints what deployment tools make of each, a line of JSON each:
// kstatus (what Flux, Helm and kpt wait for), and the health script of Argo CD.
//
// The script runs in the Lua machine that Argo CD uses, opened as Argo CD opens it (util/lua in its repository): with
// the package, base and table libraries, and without string, math and io. Argo CD's own engine, in ../go-argocd, takes
// minutes to compile; a test holds that both say the same.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type answer struct {
	Kstatus health `json:"kstatus"`
	Argo    health `json:"argo"`
}

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("usage: health SCRIPT.lua < OBJECTS"))
	}
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	objects, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		told, err := judge(raw, string(script))
		if err != nil {
			fail(err)
		}
		if err := answers.Encode(told); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func judge(raw []byte, script string) (*answer, error) {
	// As client-go reads it: whole numbers are integers.
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	result, err := status.Compute(object)
	if err != nil {
		return nil, err
	}
	argo, err := argoHealth(object, script)
	if err != nil {
		return nil, err
	}
	return &answer{Kstatus: health{string(result.Status), result.Message}, Argo: *argo}, nil
}

func argoHealth(object *unstructured.Unstructured, script string) (*health, error) {
	// Argo CD does not ask the script about these.
	if object.GetDeletionTimestamp() != nil {
		return &health{"Progressing", "Pending deletion"}, nil
	}
	machine := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer machine.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	} {
		call := lua.P{Fn: machine.NewFunction(open), Protect: true}
		if err := machine.CallByParam(call, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	machine.SetContext(limit)
	text, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	value, err := luajson.Decode(machine, text)
	if err != nil {
		return nil, err
	}
	machine.SetGlobal("obj", value)
	if err := machine.DoString(script); err != nil {
		return nil, err
	}
	returned, err := luajson.Encode(machine.Get(-1))
	if err != nil {
		return nil, err
	}
	told := &health{}
	return told, json.Unmarshal(returned, told)
}
