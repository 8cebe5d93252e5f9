// Command kpa answers what Knative's autoscaler decides in the rounds on its standard input, one JSON
// object a line. A round with Begin starts a new autoscaler.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/autoscaler/scaling"
)

type round struct {
	Begin  bool    `json:"begin"`
	At     float64 `json:"at"`     // seconds since the start
	Ready  int     `json:"ready"`  // pods
	Stable float64 `json:"stable"` // mean concurrency of the stable window
	Newest float64 `json:"newest"` // mean concurrency of the panic window
	Target float64 `json:"target"` // of one pod, utilization included
}

// seen is metrics and pods of one round.
type seen struct{ round }

func (s *seen) StableAndPanicConcurrency(types.NamespacedName, time.Time) (float64, float64, error) {
	return s.Stable, s.Newest, nil
}

func (s *seen) StableAndPanicRPS(types.NamespacedName, time.Time) (float64, float64, error) {
	return 0, 0, nil
}

func (s *seen) ReadyCount() (int, error) { return s.Ready, nil }

func (s *seen) NotReadyCount() (int, error) { return 0, nil }

func main() {
	lines := json.NewDecoder(os.Stdin)
	start := time.Now()
	now := &seen{}
	var autoscaler scaling.UniScaler
	for lines.More() {
		if err := lines.Decode(&now.round); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		spec := &scaling.DeciderSpec{
			ScalingMetric:    "concurrency",
			TargetValue:      now.Target,
			PanicThreshold:   2,
			MaxScaleUpRate:   1000,
			MaxScaleDownRate: 2,
			StableWindow:     time.Minute,
			Reachable:        true,
		}
		if now.Begin {
			// A new autoscaler reads the clock for the time at which it begins to panic.
			start = time.Now().Add(-time.Duration(now.At * float64(time.Second)))
			autoscaler = scaling.New(attribute.NewSet(), noop.NewMeterProvider(), "default", "role", now, now, spec)
		}
		autoscaler.Update(spec)
		at := start.Add(time.Duration(now.At * float64(time.Second)))
		fmt.Println(autoscaler.Scale(zap.NewNop().Sugar(), at).DesiredPodCount)
	}
}
